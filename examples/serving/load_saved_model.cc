// Runs a signature of an exported model with LoadSavedModel, the function with which TensorFlow Serving loads it.
//
//     load_saved_model VERSION SIGNATURE OUTPUT INPUT=WIDTH... < rows
//
// Each line of the standard input has the values of a row of each input, one input after the other; each line of the
// output has the values of that row. All of them are float32.
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"

int main(int count, char** words) {
  if (count < 5) {
    std::cerr << "usage: load_saved_model VERSION SIGNATURE OUTPUT INPUT=WIDTH... < rows\n";
    return 1;
  }
  tensorflow::SavedModelBundle bundle;
  absl::Status status = tensorflow::LoadSavedModel({}, {}, words[1], {"serve"}, &bundle);
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  auto signature = bundle.GetSignatures().find(words[2]);
  if (signature == bundle.GetSignatures().end() || !signature->second.outputs().contains(words[3])) {
    std::cerr << "There is no \"" << words[2] << "\" with \"" << words[3] << "\"\n";
    return 1;
  }

  std::vector<std::pair<std::string, int>> inputs;  // names in the graph, and widths
  int width = 0;
  for (int i = 4; i < count; i++) {
    std::string word = words[i], name = word.substr(0, word.find('='));
    if (!signature->second.inputs().contains(name) || name.size() == word.size()) {
      std::cerr << "There is no input \"" << word << "\", given as NAME=WIDTH\n";
      return 1;
    }
    inputs.emplace_back(signature->second.inputs().at(name).name(), std::stoi(word.substr(name.size() + 1)));
    width += inputs.back().second;
  }
  std::vector<float> values{std::istream_iterator<float>(std::cin), {}};
  int64_t batch = values.size() / width;
  if (batch * width != static_cast<int64_t>(values.size())) {
    std::cerr << "A row has too few values\n";
    return 1;
  }

  std::vector<std::pair<std::string, tensorflow::Tensor>> feeds;
  int start = 0;
  for (const auto& [name, columns] : inputs) {
    tensorflow::Tensor tensor(tensorflow::DT_FLOAT, {batch, columns});
    auto matrix = tensor.matrix<float>();
    for (int64_t row = 0; row < batch; row++)
      for (int i = 0; i < columns; i++) matrix(row, i) = values[row * width + start + i];
    feeds.emplace_back(name, tensor);
    start += columns;
  }
  std::vector<tensorflow::Tensor> found;
  status = bundle.GetSession()->Run(feeds, {signature->second.outputs().at(words[3]).name()}, {}, &found);
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }

  auto flat = found[0].flat<float>();
  int64_t columns = batch ? flat.size() / batch : 0;
  std::cout.precision(9);
  for (int64_t i = 0; i < flat.size(); i++) std::cout << flat(i) << ((i + 1) % columns ? ' ' : '\n');
  return 0;
}
