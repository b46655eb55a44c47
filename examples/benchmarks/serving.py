"""Measure how long each form of an exported policy takes per call, in comparison with Stable-Baselines3's `predict`.

    OMP_NUM_THREADS=1 taskset -c 0 python examples/benchmarks/serving.py
    OMP_NUM_THREADS=1 taskset -c 0 python examples/benchmarks/serving.py --units 64 64

The script prints the median duration of a call in microseconds, for batches of 1, 32 and 1,024 observations of
HalfCheetah-v5, on one core. The forms are measured in turn, so that other load on the machine affects all of them.
Forms whose software is not installed are left out, and the script names them.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = (1, 32, 1024)
WIDTH = 17
TURNS = 7
SECONDS = 0.2
"""The duration of the measurement of a form in each turn."""
HERE = Path(__file__).parent
Call = Callable[[np.ndarray], Any]

C_HEADER = """\
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "policy.h"
int main(int argc, char **argv) {
    int batch = atoi(argv[1]), calls = atoi(argv[2]);
    float *x = calloc((size_t)batch * POLICY_X, sizeof *x), *a = calloc((size_t)batch * POLICY_A, sizeof *a), sum = 0;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < calls; i++) {
        for (int row = 0; row < batch; row++) {
            x[row * POLICY_X + i % POLICY_X] += 1e-3f;
            policy_pi(x + row * POLICY_X, a + row * POLICY_A);
        }
        sum += a[0];
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    fprintf(stderr, "%g\\n", sum);
    printf("%g\\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / calls / 1e3 + 0 * argc);
    return 0;
}
"""
C_API = """\
#define _POSIX_C_SOURCE 199309L
#define main session_main
#include "session.c"
#undef main
#include <time.h>
int main(int argc, char **argv) {
    int64_t shape[] = {atoi(argv[2]), 17};
    int calls = atoi(argv[3]);
    TF_Status *status = TF_NewStatus();
    TF_Graph *graph = TF_NewGraph();
    TF_Buffer *meta = TF_NewBuffer();
    const char *tags[] = {"serve"};
    TF_Session *session =
        TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), NULL, argv[1], tags, 1, graph, meta, status);
    check(status);
    const uint8_t *bytes = meta->data;
    Bytes signature = look_up((Bytes){bytes, bytes + meta->length}, SIGNATURE_DEF, "pi");
    TF_Output output = tensor_of(graph, signature, SIGNATURE_OUTPUTS, "pi");
    TF_Output feed = tensor_of(graph, signature, SIGNATURE_INPUTS, "x");
    size_t size = sizeof(float) * (size_t)shape[0] * 17;
    TF_Tensor *given = TF_AllocateTensor(TF_FLOAT, shape, 2, size), *found = NULL;
    memset(TF_TensorData(given), 0, size);
    struct timespec start, end;
    for (int i = -50; i < calls; i++) {
        if (i == 0) clock_gettime(CLOCK_MONOTONIC, &start);
        TF_SessionRun(session, NULL, &feed, &given, 1, &output, &found, 1, NULL, 0, NULL, status);
        check(status);
        TF_DeleteTensor(found);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%g\\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / calls / 1e3 + 0 * argc);
    return 0;
}
"""


def forms(units: list[int], directory: Path) -> tuple[dict[str, Callable[[int], float]], dict[str, str]]:
    """Return functions that measure a call of each form, in microseconds, and the reasons why forms are missing."""
    import tensorflow as tf

    import tfdpg

    agent = tfdpg.TD3("HalfCheetah-v5", hidden_units=units, seed=0)
    version = agent.export(directory / "policy")
    signature = tf.saved_model.load(str(version)).signatures["pi"]
    policy = tfdpg.load(version)
    by_numpy = policy.numpy()
    calls: dict[str, Callable[[int], float]] = {
        "signature, `tf.saved_model.load`": timed(lambda x: signature(x=tf.constant(x))["pi"].numpy()),
        "`tfdpg.load`": timed(policy),
        "`tfdpg.load(...).numpy()`": timed(by_numpy),
    }
    missing = {}
    makers = {"TensorFlow's C API": c_api, "LiteRT": litert, "ONNX Runtime": onnx, "C header, -O2": c_header}
    for name, make in {**makers, "Stable-Baselines3, `predict`": stable_baselines3}.items():
        try:
            calls[name] = make(agent, version, directory, units)
        except (ImportError, FileNotFoundError) as error:
            missing[name] = str(error)
    return calls, missing


def timed(call: Call) -> Callable[[int], float]:
    """Return a function that measures a Python call."""

    def measure(batch: int) -> float:
        x = np.random.default_rng(0).normal(size=(batch, WIDTH)).astype(np.float32)
        call(x)
        times: list[float] = []
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            call(x)
            times.append(time.perf_counter() - began)
        return 1e6 * statistics.median(times)

    return measure


def litert(agent: Any, version: Path, directory: Path, units: list[int]) -> Callable[[int], float]:
    """LiteRT's interpreter, one thread."""
    from ai_edge_litert.interpreter import Interpreter

    agent.export(directory / "litert", format="litert")
    pi: Any = Interpreter(str(directory / "litert/model.tflite"), num_threads=1).get_signature_runner("pi")
    return timed(lambda x: pi(x=x)["pi"])


def onnx(agent: Any, version: Path, directory: Path, units: list[int]) -> Callable[[int], float]:
    """ONNX Runtime, one thread."""
    import onnxruntime

    agent.export(directory / "onnx", format="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(directory / "onnx/pi.onnx"), options)
    return timed(lambda x: session.run(None, {"x": x})[0])


def c_header(agent: Any, version: Path, directory: Path, units: list[int]) -> Callable[[int], float]:
    """`policy.h`, which processes the rows of a batch one after the other."""
    agent.export(directory / "c", format="c", prefix="policy")
    program = compiled(directory / "c_header", C_HEADER, [f"-I{directory / 'c'}", "-lm"])
    return program_timed([program])


def c_api(agent: Any, version: Path, directory: Path, units: list[int]) -> Callable[[int], float]:
    """`TF_SessionRun`, as in examples/serving/session.c."""
    import tensorflow as tf

    library = tf.sysconfig.get_lib()
    links = ["-Wl,--no-as-needed", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    flags = [f"-I{library}/include", f"-I{HERE.parent / 'serving'}", f"-L{library}", *links, f"-Wl,-rpath,{library}"]
    return program_timed([compiled(directory / "c_api", C_API, flags), str(version)])


def stable_baselines3(agent: Any, version: Path, directory: Path, units: list[int]) -> Callable[[int], float]:
    """TD3's `predict` with networks of the same sizes, one thread."""
    import gymnasium as gym
    import torch
    from stable_baselines3 import TD3

    torch.set_num_threads(1)
    model = TD3("MlpPolicy", gym.make("HalfCheetah-v5"), policy_kwargs={"net_arch": units}, device="cpu")
    return timed(lambda x: model.predict(x, deterministic=True))


def compiled(path: Path, text: str, flags: list[str]) -> str:
    """Compile a C program, and return the path of the executable."""
    if shutil.which("cc") is None:
        raise FileNotFoundError("there is no C compiler")
    path.with_suffix(".c").write_text(text)
    subprocess.run(["cc", "-std=c99", "-O2", str(path.with_suffix(".c")), "-o", str(path), *flags], check=True)
    return str(path)


def program_timed(words: list[str]) -> Callable[[int], float]:
    """Return a function that measures calls in a program.

    The program takes the batch size and the number of calls as arguments, and prints the mean duration.
    """

    def once(batch: int, calls: int) -> float:
        answer = subprocess.run([*words, str(batch), str(calls)], capture_output=True, text=True, check=True)
        return float(answer.stdout.split()[-1])

    return lambda batch: once(batch, max(10, int(SECONDS * 1e6 / max(once(batch, 10), 0.1))))


def shown(microseconds: float) -> str:
    """Format a number with three digits."""
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.3g}"


def main() -> None:
    """Measure all forms, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="+", default=[256, 256], help="units of the hidden layers")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each form is measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measure, missing = forms(arguments.units, Path(directory))
        found: dict[tuple[str, int], list[float]] = {}
        for _ in range(arguments.turns):
            for name, call in measure.items():
                for batch in BATCHES:
                    found.setdefault((name, batch), []).append(call(batch))
    print(f"| {arguments.units}, µs a call | " + " | ".join(f"batch {batch:,}" for batch in BATCHES) + " |")
    print("|---|" + "---:|" * len(BATCHES))
    for name in measure:
        print(f"| {name} | " + " | ".join(shown(statistics.median(found[name, batch])) for batch in BATCHES) + " |")
    for name, why in missing.items():
        print(f"{name} is left out: {why}")


if __name__ == "__main__":
    main()
