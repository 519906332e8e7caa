// SPDX-License-Identifier: MIT
#include "relay/node_sums.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/host_access.hpp"
#include "relay/outbox.hpp"
#include "sluice/limits.hpp"

namespace sluice::relay {

using protocol::Cell;
using window::AnswerHead;
using window::RelayLayout;

bool NodeSums::step() {
  if (next_job_ == jobs_.size() && !begin_epoch()) return false;
  if (next_job_ == jobs_.size()) return true;  // It serves nobody.
  Job& job = jobs_[next_job_];
  if (job.next_group * site_.own().group_rows() < job.head.slots) {
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
             neighbour, site_.layout(neighbour).published(protocol::CellKind::combine))) >= epoch;
}

// An epoch begins when every rank of this node that still lives has published it.
bool NodeSums::begin_epoch() {
  const std::uint64_t epoch = begun_ + 1;
  bool any = false;
  for (const int neighbour : site_.neighbours()) {
    if (published(neighbour, epoch)) {
      any = true;
    } else if (!site_.ended(neighbour)) {
      return false;
    }
  }
  if (!any) return false;
  begun_ = epoch;
  next_job_ = 0;
  for (std::size_t i = 0; i < jobs_.size(); ++i) begin_job(jobs_[i], site_.own().served()[i]);
  return true;
}

void NodeSums::begin_job(Job& job, int home) {
  job.home = home;
  job.head = {begun_, 0, static_cast<std::int32_t>(site_.neighbours().size()), 0, 1};
  job.parts.clear();
  job.form = nullptr;
  job.next_group = 0;
  for (const int neighbour : site_.neighbours()) {
    if (published(neighbour, begun_)) add_part(job, neighbour);
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
    job.head.slots = std::max(job.head.slots, part.tokens[part.records - 1] + 1);
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
  const std::size_t sum = own.sum(job.home, site_.bank(begun_));
  post_answer_rows(site_, postings_, job.home, job.head, group,
                   site_.at<const std::uint32_t>(site_.rank, sum + own.sum_masks()),
                   own.sum_row(job.home, own.answer_stage(begun_), 0));
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

void NodeSums::post_head(const Job& job) {
  const RelayLayout& own = site_.own();
  const RelayLayout& there = site_.layout(job.home);
  const int bank = site_.bank(begun_);
  const std::size_t sum = own.sum(job.home, bank);
  auto* cells = site_.at<Cell>(site_.rank, sum + window::kAnswerHeadBytes);
  const auto neighbours = site_.neighbours();
  *site_.at<AnswerHead>(site_.rank, sum) = job.head;
  for (std::size_t i = 0; i < neighbours.size(); ++i) cells[i] = {};
  for (const Part& part : job.parts) {
    Cell& cell = cells[site_.nodes.place_of(part.rank)];
    cell = *part.cell;
    cell.content.in_sum = 1;
  }
  const auto tokens = static_cast<std::size_t>(job.head.slots);
  postings_.begin(job.home, there.answer_slot(site_.rank, bank), {protocol::Kind::combine, bank});
  postings_.add(kWindowRegion, sum, there.answer_head(site_.rank, bank),
                window::kAnswerHeadBytes + neighbours.size() * sizeof(Cell));
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
