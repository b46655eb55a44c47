/* Runs a signature of an exported model with TensorFlow's C API.

       session VERSION SIGNATURE OUTPUT INPUT=WIDTH... < rows

   Each line of the standard input has the values of a row of each input, one input after the other; each line of the
   output has the values of that row. All of them are float32:

       echo "1 0 0.5 -1.5" | session exported_models/ddpg-pendulum/1 q1 q1 x=3 a=1

   Names of tensors in the graph are another export's no more; the signature says which they are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { ROWS = 4096, INPUTS = 8 };

static void fail(const char *message) {
  fprintf(stderr, "%s\n", message);
  exit(1);
}

static void check(const TF_Status *status) {
  if (TF_GetCode(status) != TF_OK) fail(TF_Message(status));
}

/* ---- the SignatureDef, from the bytes of the MetaGraphDef (a protocol buffer) ---- */

typedef struct {
  const uint8_t *at, *end;
} Bytes;

static uint64_t varint(Bytes *from) {
  uint64_t value = 0;
  for (int shift = 0; from->at < from->end && shift < 64; shift += 7) {
    uint8_t byte = *from->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  fail("The meta graph is damaged");
  return 0;
}

/* The number of the next field of a message, and what it holds if that has a length; 0 at the end. */
static unsigned next_field(Bytes *message, Bytes *content) {
  if (message->at >= message->end) return 0;
  uint64_t tag = varint(message), length = 0;
  switch (tag & 7) {
    case 0: varint(message); break;
    case 1: length = 8; break;
    case 2: length = varint(message); break;
    case 5: length = 4; break;
    default: fail("The meta graph is damaged");
  }
  if (length > (uint64_t)(message->end - message->at)) fail("The meta graph is damaged");
  content->at = message->at;
  content->end = message->at += length;
  return (unsigned)(tag >> 3);
}

/* The value of a key in field `number` of a message, which is a map from texts to messages. */
static Bytes look_up(Bytes message, unsigned number, const char *key) {
  Bytes entry, part;
  for (unsigned field; (field = next_field(&message, &entry));) {
    if (field != number) continue;
    Bytes name = {0}, value = {0};
    for (unsigned inner; (inner = next_field(&entry, &part));) {
      if (inner == 1) name = part;
      if (inner == 2) value = part;
    }
    if ((size_t)(name.end - name.at) == strlen(key) && !memcmp(name.at, key, strlen(key))) return value;
  }
  fprintf(stderr, "There is no \"%s\"\n", key);
  exit(1);
}

enum { SIGNATURE_DEF = 5, SIGNATURE_INPUTS = 1, SIGNATURE_OUTPUTS = 2, TENSOR_NAME = 1 };

/* The place in the graph of an input or output of a signature, which is called as "StatefulPartitionedCall_1:0". */
static TF_Output tensor_of(TF_Graph *graph, Bytes signature, unsigned map, const char *key) {
  Bytes info = look_up(signature, map, key), part;
  for (unsigned field; (field = next_field(&info, &part));) {
    if (field != TENSOR_NAME) continue;
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)(part.end - part.at), (const char *)part.at);
    char *colon = strrchr(name, ':');
    if (colon) *colon = 0;
    TF_Output tensor = {TF_GraphOperationByName(graph, name), colon ? atoi(colon + 1) : 0};
    if (!tensor.oper) fail("The graph has no such tensor");
    return tensor;
  }
  fail("The tensor has no name");
  return (TF_Output){0};
}

int main(int count, char **words) {
  if (count < 5 || count - 4 > INPUTS) fail("usage: session VERSION SIGNATURE OUTPUT INPUT=WIDTH... < rows");
  int inputs = count - 4;
  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_Buffer *meta = TF_NewBuffer();
  TF_SessionOptions *options = TF_NewSessionOptions();
  const char *tags[] = {"serve"};
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, words[1], tags, 1, graph, meta, status);
  check(status);

  const uint8_t *bytes = meta->data;
  Bytes signature = look_up((Bytes){bytes, bytes + meta->length}, SIGNATURE_DEF, words[2]);
  TF_Output output = tensor_of(graph, signature, SIGNATURE_OUTPUTS, words[3]), feeds[INPUTS];
  int widths[INPUTS];
  float *rows[INPUTS];
  for (int i = 0; i < inputs; i++) {
    char *equals = strchr(words[4 + i], '=');
    if (!equals || (widths[i] = atoi(equals + 1)) < 1) fail("An input is given as NAME=WIDTH");
    *equals = 0;
    feeds[i] = tensor_of(graph, signature, SIGNATURE_INPUTS, words[4 + i]);
    rows[i] = malloc(sizeof(float) * ROWS * (size_t)widths[i]);
  }

  int batch = 0;
  for (;; batch++) {
    int read = 0, wanted = 0;
    for (int i = 0; i < inputs; i++) {
      float nowhere;
      for (int j = 0; j < widths[i]; j++, wanted++)
        read += scanf("%f", batch < ROWS ? &rows[i][batch * widths[i] + j] : &nowhere) == 1;
    }
    if (read == 0) break;
    if (read != wanted || batch >= ROWS) fail("A row has too few values, or there are more than 4096");
  }

  TF_Tensor *given[INPUTS], *found = NULL;
  for (int i = 0; i < inputs; i++) {
    int64_t shape[] = {batch, widths[i]};
    size_t size = sizeof(float) * (size_t)batch * (size_t)widths[i];
    given[i] = TF_AllocateTensor(TF_FLOAT, shape, 2, size);
    memcpy(TF_TensorData(given[i]), rows[i], size);
    free(rows[i]);
  }
  TF_SessionRun(session, NULL, feeds, given, inputs, &output, &found, 1, NULL, 0, NULL, status);
  check(status);
  if (TF_TensorType(found) != TF_FLOAT) fail("The output is not float32");

  const float *values = TF_TensorData(found);
  int64_t width = batch ? TF_TensorElementCount(found) / batch : 0;
  for (int64_t row = 0; row < batch; row++)
    for (int64_t i = 0; i < width; i++) printf("%.9g%c", values[row * width + i], i + 1 < width ? ' ' : '\n');

  for (int i = 0; i < inputs; i++) TF_DeleteTensor(given[i]);
  TF_DeleteTensor(found);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteBuffer(meta);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
