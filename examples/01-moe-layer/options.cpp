// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace moe {
namespace {

struct Number {
  const char* name;
  int* value;
  int min;
  int max;
  const char* meaning;
};

std::vector<Number> numbers_of(Options& options) {
  ModelShape& model = options.model;
  return {
      {"--ranks", &options.ranks, 1, 64, "processes to start, unless a launcher did"},
      {"--tokens", &options.tokens, 1, 1 << 16, "tokens of one step, over all ranks"},
      {"--steps", &options.steps, 1, 1000, "steps, each with the next tokens of the text"},
      {"--repetitions", &options.repetitions, 1, 1000, "of every dispatch and combine"},
      {"--layers", &model.layers, 1, 64, "MoE layers"},
      {"--hidden", &model.hidden, 16, 1 << 14, "elements of a row, a multiple of 16"},
      {"--experts", &model.experts, 1, 4096, "experts of a layer"},
      {"--width", &model.width, 1, 1 << 14, "inner width of an expert"},
      {"--top-k", &model.top_k, 1, 32, "experts of a token"},
  };
}

bool one_of(const std::string& value, const std::vector<std::string>& choices,
            const std::string& name, std::string& error) {
  for (const std::string& choice : choices) {
    if (value == choice) return true;
  }
  error = name + " is '" + value + "', expected one of:";
  for (const std::string& choice : choices) error += " " + choice;
  return false;
}

bool check(const Options& options, std::string& error) {
  if (options.model.hidden % 16 != 0) {
    error = "--hidden is " + std::to_string(options.model.hidden) + ", expected a multiple of 16";
    return false;
  }
  if (options.model.top_k > options.model.experts) {
    error = "--top-k is " + std::to_string(options.model.top_k) +
            ", expected at most --experts = " + std::to_string(options.model.experts);
    return false;
  }
  return one_of(options.mode, {"automatic", "latency", "throughput"}, "--mode", error) &&
         one_of(options.layout, {"expert_major", "expert_slab"}, "--layout", error);
}

}  // namespace

bool parse_options(const std::vector<std::string>& arguments, Options& options,
                   std::string& error) {
  const std::vector<Number> numbers = numbers_of(options);
  const std::vector<std::pair<std::string, std::string*>> strings = {
      {"--text", &options.text}, {"--mode", &options.mode}, {"--layout", &options.layout}};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help" || name == "-h") {
      options.help = true;
      return true;
    }
    const Number* number = nullptr;
    std::string* string = nullptr;
    for (const Number& candidate : numbers) {
      if (name == candidate.name) number = &candidate;
    }
    for (const auto& [candidate, value] : strings) {
      if (name == candidate) string = value;
    }
    if (number == nullptr && string == nullptr) {
      error = "unknown argument '" + name + "'";
      return false;
    }
    if (i + 1 == arguments.size()) {
      error = name + " needs a value";
      return false;
    }
    const std::string& value = arguments[++i];
    if (string != nullptr) {
      *string = value;
      continue;
    }
    const auto [end, code] =
        std::from_chars(value.data(), value.data() + value.size(), *number->value);
    if (code != std::errc() || end != value.data() + value.size() || *number->value < number->min ||
        *number->value > number->max) {
      error = name + " is '" + value + "', expected a whole number from " +
              std::to_string(number->min) + " to " + std::to_string(number->max);
      return false;
    }
  }
  return check(options, error);
}

std::string usage() {
  Options defaults;
  std::string text =
      "usage: moe_layer [options]\n\n"
      "Runs a stack of MoE layers over several ranks with Sluice and compares it with one "
      "process.\n\n"
      "  --text FILE             text to run on (default: this example's README.md)\n"
      "  --mode MODE             automatic, latency or throughput (automatic)\n"
      "  --layout LAYOUT         expert_major or expert_slab (expert_major)\n";
  for (const Number& number : numbers_of(defaults)) {
    std::string line = "  " + std::string(number.name) + " N";
    line.resize(std::max<std::size_t>(line.size() + 1, 26), ' ');
    text += line + number.meaning + " (" + std::to_string(*number.value) + ")\n";
  }
  return text;
}

}  // namespace moe
