// SPDX-License-Identifier: MIT
#include "faults/leaver.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "support/place.hpp"

namespace sluice::faults {
namespace {

using std::chrono::seconds;

constexpr int kLeaver = 1;
constexpr int kRounds = 7;  // All banks have been used by then.

/// Everything that this process writes to stderr from now on.
class StderrText {
 public:
  StderrText() : file_(::memfd_create("stderr", MFD_CLOEXEC)) { ::dup2(file_, STDERR_FILENO); }
  ~StderrText() { ::close(file_); }
  StderrText(const StderrText&) = delete;
  StderrText& operator=(const StderrText&) = delete;
  std::string read() const {
    std::string text(1 << 16, '\0');
    const ssize_t bytes = ::pread(file_, text.data(), text.size(), 0);
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
  }

 private:
  int file_;
};

void check_missing(support::Findings& findings, const RankSet& expected, const RoundResult& seen) {
  if (seen.dispatch_missing != expected || seen.combine_missing != expected) {
    findings.add(fmt::format("report.missing: expected {}, seen {} and {}", text_of(expected),
                             text_of(seen.dispatch_missing), text_of(seen.combine_missing)));
  }
  if (seen.longest_half > seconds(10)) findings.add("a half waited for a rank that is gone");
}

}  // namespace

void run_and_leave(const Terms& terms, World& world, support::Findings& findings) {
  const StderrText log;
  CommunicatorOptions options = options_of(terms);
  support::place().adapt(options);
  Result<Communicator> communicator = Communicator::create(world, shape_of(terms), options);
  if (!communicator) {
    return findings.add("Communicator::create: " + communicator.status().to_string());
  }
  Member member(terms, *communicator, findings);
  for (int number = 0; number < kRounds; ++number) {
    check_missing(findings, {}, member.run(make_round(terms, number)));
  }
  if (world.rank() == kLeaver) {
    const Status left = world.leave(seconds(10));
    if (!left.ok()) findings.add("leave: " + left.to_string());
    return;
  }
  RankSet gone;
  gone.insert(kLeaver);
  for (int number = kRounds; number < 2 * kRounds; ++number) {
    const RoundResult result = member.run(make_round(terms, number));
    // Whoever is fast may still find the leaver there in its first round: leaving takes a moment,
    // but a rank that has not sent is waited for until it has left.
    check_missing(findings, gone, result);
  }
  const std::string text = log.read();
  if (text.find("[error]") != std::string::npos) findings.add("the log has errors: " + text);
}

}  // namespace sluice::faults
