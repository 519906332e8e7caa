// SPDX-License-Identifier: MIT
#include "relay/node_sums.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/host_access.hpp"
#include "protocol/signals.hpp"
#include "relay/outbox.hpp"
#include "sluice/limits.hpp"
#include "sluice/types.hpp"

namespace sluice::relay {

using protocol::Cell;
using protocol::CellKind;
using window::AnswerHead;
using window::RelayLayout;

bool NodeSums::step() {
  if (!untold_.empty()) tell_absence();
  if (next_job_ == jobs_.size() && !begin_epoch()) return false;
  if (next_job_ == jobs_.size()) return true;  // It serves nobody.
  Job& job = jobs_[next_job_];
  if (job.next_group * site_.own().group_rows() < job.rows()) {
    sum_group(job);
  } else {
    if (!job.parts.empty()) post_head(job);
    ++next_job_;
  }
  return true;
}

bool NodeSums::published(int neighbour, std::uint64_t epoch) const noexcept {
  // Pairs with the release store in Relay::publish.
  return protocol::HostAccess::load_acquire(*site_.at<std::uint64_t>(
             neighbour, site_.layout(neighbour).published(CellKind::combine))) >= epoch;
}

bool NodeSums::everyone_published(std::uint64_t epoch) const noexcept {
  const auto neighbours = site_.neighbours();
  return std::all_of(neighbours.begin(), neighbours.end(), [&](int neighbour) {
    return absent_[static_cast<std::size_t>(neighbour)] != 0 || published(neighbour, epoch);
  });
}

// It has ended, or closed its communicator; or this rank has given it up, or was given up by it.
bool NodeSums::comes_no_more(int neighbour) const noexcept {
  const auto set = [&](int at, std::size_t offset) {
    // Pairs with protocol::accuse in await().
    return protocol::HostAccess::load_acquire(*site_.at<std::uint64_t>(at, offset)) != 0;
  };
  return site_.ended(neighbour) || site_.relay_state(neighbour) != 0 ||
         set(neighbour, site_.window.accusation(site_.rank)) ||
         set(site_.rank, site_.window.accusation(neighbour));
}

// Whether the rank has given weights to this combine, and waits for others'.
bool NodeSums::waits_for_weights(int neighbour, std::uint64_t epoch) const noexcept {
  const auto& weights = *site_.at<const Cell>(
      site_.rank, site_.window.cell(neighbour, CellKind::weights, site_.bank(epoch)));
  // Pairs with protocol::publish of the neighbour.
  if (!protocol::arrived<protocol::HostAccess>(weights, epoch)) return false;
  return (weights.content.flags & protocol::cell_flags::kRefused) == 0;
}

// Whether all ranks of this node that have not published yet gave weights to this combine, and others did
// not: then they wait for weights of homes that wait for this sum.
bool NodeSums::disagreed(std::uint64_t epoch) const noexcept {
  if (site_.own().served().empty()) return false;
  const int bank = site_.bank(epoch);
  bool without = false;
  for (const int neighbour : site_.neighbours()) {
    if (absent_[static_cast<std::size_t>(neighbour)] != 0) continue;
    if (!published(neighbour, epoch)) {
      if (!waits_for_weights(neighbour, epoch)) return false;
      continue;
    }
    const RelayLayout& there = site_.layout(neighbour);
    const std::size_t answer = there.answer(site_.own().served().front(), bank);
    const auto& head = *site_.at<const AnswerHead>(neighbour, answer);
    const auto& cell = *site_.at<const Cell>(neighbour, answer + there.answer_content());
    if (head.epoch != epoch) continue;
    without = without || (cell.content.flags & protocol::cell_flags::kWithWeights) == 0;
  }
  return without;
}

void NodeSums::leave_out(int neighbour) {
  std::uint8_t& absent = absent_[static_cast<std::size_t>(neighbour)];
  if (absent != 0) return;
  absent = 1;
  for (const int home : site_.own().served()) untold_.push_back({home, neighbour, begun_});
}

// Signs overtake rows: what was sent before would be given up with the neighbour.
void NodeSums::tell_absence() {
  std::erase_if(untold_, [&](const Absence& each) {
    // Pairs with the store in Presence::count_up.
    const std::uint64_t told = protocol::told<protocol::HostAccess>(*site_.at<std::uint64_t>(
        site_.rank, site_.window.told(each.home, protocol::Kind::combine)));
    if (told < each.after) return false;
    postings_.sign(each.home, window::Sign::absent, site_.nodes.place_of(each.neighbour));
    return true;
  });
}

// An epoch begins when every rank of this node has published it, but for those that come no more. (Who
// has only closed its communicator is not left out before others make a combine without it.) It is asked in every step of every
// rank of the node.
bool NodeSums::begin_epoch() {
  const std::uint64_t epoch = begun_ + 1;
  const auto neighbours = site_.neighbours();
  for (; here_ < neighbours.size(); ++here_) {
    const bool absent = absent_[static_cast<std::size_t>(neighbours[here_])] != 0;
    if (!absent && !published(neighbours[here_], epoch)) break;
    any_here_ = any_here_ || !absent;
  }
  if (here_ < neighbours.size()) {
    // Most often it is to be waited for, and the others need not be looked at.
    const int next = neighbours[here_];
    if (!comes_no_more(next) && !waits_for_weights(next, epoch)) return false;
    if (!begin_without_some(epoch)) return false;
  } else if (!any_here_) {
    return false;
  }
  begin(epoch);
  return true;
}

// Whether those who have not published it need not be waited for.
bool NodeSums::begin_without_some(std::uint64_t epoch) {
  bool any = false;
  bool waiting = false;
  gone_.clear();
  for (const int neighbour : site_.neighbours()) {
    if (absent_[static_cast<std::size_t>(neighbour)] != 0) continue;
    const bool gone = comes_no_more(neighbour);  // Looked at before the last look for its answers.
    if (published(neighbour, epoch)) {
      any = true;
    } else if (gone) {
      gone_.push_back(neighbour);
    } else {
      waiting = true;
    }
  }
  if (!any || (waiting && !disagreed(epoch))) return false;
  for (const int neighbour : gone_) leave_out(neighbour);
  return true;
}

void NodeSums::begin(std::uint64_t epoch) {
  begun_ = epoch;
  here_ = 0;
  any_here_ = false;
  next_job_ = 0;
  for (std::size_t i = 0; i < jobs_.size(); ++i) begin_job(jobs_[i], site_.own().served()[i]);
}

void NodeSums::begin_job(Job& job, int home) {
  job.home = home;
  job.head = {begun_, 0, static_cast<std::int32_t>(site_.neighbours().size()), 0, 1};
  job.parts.clear();
  job.form = nullptr;
  job.next_group = 0;
  job.spoilt = false;
  job.torn = !everyone_published(begun_);
  job.apart = answers_apart(home);
  for (const int neighbour : site_.neighbours()) {
    const bool absent = absent_[static_cast<std::size_t>(neighbour)] != 0;
    if (!absent && published(neighbour, begun_)) add_part(job, neighbour);
  }
  const RelayLayout& own = site_.own();
  const std::size_t sum = own.sum(home, site_.bank(begun_));
  std::fill_n(site_.at<std::uint32_t>(site_.rank, sum + own.sum_masks()), job.head.slots, 0U);
  if (job.row_weights()) {
    std::fill_n(site_.at<float>(site_.rank, sum + own.sum_weights()),
                static_cast<std::size_t>(job.head.slots) * static_cast<std::size_t>(site_.top_k),
                0.0F);
  }
}

// Whether this rank sends the home its answer by itself.
bool NodeSums::answers_apart(int home) const noexcept {
  const RelayLayout& own = site_.own();
  const int bank = site_.bank(begun_);
  if (published(site_.rank, begun_)) {
    const auto& answer = *site_.at<const AnswerHead>(site_.rank, own.answer(home, bank));
    return answer.epoch == begun_ && answer.by_node == 0;
  }
  // It waits for weights, and may be about to write its answer. What kind that will be came with its own.
  const auto& weights =
      *site_.at<const Cell>(site_.rank, site_.window.cell(site_.rank, CellKind::weights, bank));
  return weights.content.codec_form != static_cast<std::uint8_t>(Reduce::node);
}

void NodeSums::add_part(Job& job, int rank) const {
  const RelayLayout& there = site_.layout(rank);
  const std::size_t answer = there.answer(job.home, site_.bank(begun_));
  const auto& head = *site_.at<const AnswerHead>(rank, answer);
  if (head.epoch != begun_ || head.by_node == 0) return;
  Part part;
  part.rank = rank;
  part.cell = site_.at<const Cell>(rank, answer + there.answer_content());
  part.tokens = site_.at<const std::int32_t>(rank, answer + there.answer_tokens());
  part.masks = site_.at<const std::uint32_t>(rank, answer + there.answer_masks());
  part.weights = site_.at<const float>(rank, answer + there.answer_weights());
  part.rows =
      site_.at<const std::byte>(rank, there.answer_row(job.home, there.answer_stage(begun_), 0));
  // Calls that differ cannot be added up: home sees the cells, and reports them.
  const bool fits = job.form == nullptr || agree(job.form->content, part.cell->content);
  part.records = fits ? head.slots : 0;
  if (part.records > 0) {
    if (job.form == nullptr) job.form = part.cell;
    // Bounded: a rank that has given this one up may write something else there by now.
    const int tokens = std::min(part.tokens[part.records - 1] + 1, site_.window.shape().tokens);
    job.head.slots = std::max(job.head.slots, tokens);
    job.head.row_bytes = head.row_bytes;
  }
  job.parts.push_back(part);
}

void NodeSums::sum_group(Job& job) {
  const RelayLayout& own = site_.own();
  const int group = job.next_group++;
  const int first = group * own.group_rows();
  const int end = std::min(job.head.slots, first + own.group_rows());
  for (int token = first; token < end; ++token) sum_token(job, token);
  if (overwritten(job)) {
    job.spoilt = true;
    job.head.slots = first;
    return;
  }
  const std::size_t sum = own.sum(job.home, site_.bank(begun_));
  post_answer_rows(site_, postings_, job.home, job.head, group,
                   site_.at<const std::uint32_t>(site_.rank, sum + own.sum_masks()),
                   own.sum_row(job.home, own.answer_stage(begun_), 0));
}

// Whether a rank whose rows are added up has given this one up: then it does not wait until its rows
// are read. (This rank, or its thread, stood still.)
bool NodeSums::overwritten(const Job& job) const noexcept {
  return std::any_of(job.parts.begin(), job.parts.end(), [&](const Part& part) {
    return part.records > 0 && part.rank != site_.rank &&
           protocol::accused<protocol::HostAccess>(
               *site_.at<std::uint64_t>(site_.rank, site_.window.accusation(part.rank)));
  });
}

void NodeSums::sum_token(Job& job, int token) {
  const RelayLayout& own = site_.own();
  const std::size_t sum = own.sum(job.home, site_.bank(begun_));
  auto& mask = site_.at<std::uint32_t>(site_.rank, sum + own.sum_masks())[token];
  auto* weights = site_.at<float>(site_.rank, sum + own.sum_weights()) +
                  static_cast<std::ptrdiff_t>(token) * site_.top_k;
  std::array<codec::SumTerm, kMaxTopk> terms;
  std::size_t count = 0;
  for (Part& part : job.parts) {
    if (part.next >= part.records || part.tokens[part.next] != token) continue;
    const int record = part.next++;
    const std::uint32_t answered = part.masks[record];
    if (answered == 0) continue;
    mask |= answered;
    terms[count++].row =
        part.rows + static_cast<std::size_t>(record) * site_.window.combine_row_stride();
    if (!job.row_weights()) continue;
    for (int k = 0; k < site_.top_k; ++k) {
      if (((answered >> k) & 1U) != 0) weights[k] = part.weights[record * site_.top_k + k];
    }
  }
  if (count == 0) return;
  const DType dtype =
      codec::row_dtype({static_cast<CodecKind>(job.form->content.codec_kind), ScaleForm::f32, 128});
  codec::SumArgs args;
  args.terms = {terms.data(), count};
  args.term_dtype = dtype;
  args.out_dtype = dtype;
  args.elements = site_.hidden;
  args.out =
      site_.at<std::byte>(site_.rank, own.sum_row(job.home, own.answer_stage(begun_), token));
  kernels_.sum(args);
}

// Those who waited for weights answer nothing: their homes made other calls than they.
void NodeSums::put_cells_of_the_late(const Job& job, Cell* cells) const {
  for (const int neighbour : site_.neighbours()) {
    Cell& cell = cells[site_.nodes.place_of(neighbour)];
    if (absent_[static_cast<std::size_t>(neighbour)] != 0 || cell.content.in_sum != 0) continue;
    cell = *job.parts.front().cell;
    cell.content.flags = protocol::cell_flags::kNothing | protocol::cell_flags::kGivenWeights;
    cell.content.records = 0;
    cell.content.in_sum = 1;
  }
}

void NodeSums::post_head(const Job& job) {
  const RelayLayout& own = site_.own();
  const RelayLayout& there = site_.layout(job.home);
  const int bank = site_.bank(begun_);
  const std::size_t sum = own.sum(job.home, bank);
  auto* cells = site_.at<Cell>(site_.rank, sum + window::kAnswerHeadBytes);
  const auto neighbours = site_.neighbours();
  auto& head = *site_.at<AnswerHead>(site_.rank, sum);
  head = job.head;
  head.cells_only = job.apart ? 1 : 0;
  for (std::size_t i = 0; i < neighbours.size(); ++i) cells[i] = {};
  for (const Part& part : job.parts) {
    Cell& cell = cells[site_.nodes.place_of(part.rank)];
    cell = *part.cell;
    cell.content.in_sum = 1;
    if (job.spoilt || (job.apart && part.records > 0)) {
      cell.content.flags |= protocol::cell_flags::kNothing;
    }
  }
  if (job.torn) put_cells_of_the_late(job, cells);
  const auto tokens = static_cast<std::size_t>(job.head.slots);
  postings_.begin(job.home, there.answer_slot(site_.rank, /*sums=*/true, bank),
                  {protocol::Kind::combine, bank});
  postings_.add(kWindowRegion, sum, there.answer_head(site_.rank, /*sums=*/true, bank),
                window::kAnswerHeadBytes + neighbours.size() * sizeof(Cell));
  if (job.apart) return postings_.end();
  postings_.add(kWindowRegion, sum + own.sum_masks(),
                site_.window.combine_mask(site_.rank, bank, 0), tokens * sizeof(std::uint32_t));
  if (job.row_weights()) {
    postings_.add(kWindowRegion, sum + own.sum_weights(),
                  site_.window.row_weights(site_.rank, bank, 0),
                  tokens * static_cast<std::size_t>(site_.top_k) * sizeof(float));
  }
  postings_.end();
}

}  // namespace sluice::relay
