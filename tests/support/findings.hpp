// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace sluice::support {

/// What one rank found wrong, as text, because a rank may be a process without GoogleTest. A body
/// goes on after a finding: its peers count on its calls.
class Findings {
 public:
  /// The first few are kept, the rest are counted.
  void add(const std::string& what);
  bool empty() const { return count_ == 0; }
  /// Put before every further finding: "step 3, dispatch: ".
  void set_context(std::string context) { context_ = std::move(context); }
  const std::string& context() const { return context_; }
  /// A result to hand to the test, e.g. a hash.
  void set_note(std::string note) { note_ = std::move(note); }

  std::vector<std::string> texts() const;
  const std::string& note() const { return note_; }

 private:
  std::vector<std::string> kept_;
  std::string context_;
  std::string note_;
  int count_ = 0;
};

/// Bytes that carry findings and note from a child process, and back. `complete` is false if the
/// bytes end early.
struct Report {
  bool complete = false;
  std::vector<std::string> texts;
  std::string note;
};
std::string serialise(const Findings& findings);
Report parse_report(const std::string& bytes);

}  // namespace sluice::support
