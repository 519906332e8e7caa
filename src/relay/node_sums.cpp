// SPDX-License-Identifier: MIT
#include "relay/node_sums.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/host_access.hpp"
#include "relay/outbox.hpp"
#include "sluice/limits.hpp"

namespace sluice::relay {

using protocol::Cell;
using protocol::cell_flags::kRowWeights;
using window::AnswerHead;
using window::RelayLayout;

bool NodeSums::step() {
  if (jobs_.empty() && !begin_epoch()) return false;
  if (jobs_.empty()) return true;
  Job& job = jobs_.front();
  if (job.next_group * site_.own().group_rows() < job.tokens) {
    sum_group(job);
  } else {
    post_head(job);
    jobs_.pop_front();
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
  const std::vector<int>& served = site_.own().served();
  for (const int home : served) begin_job(home, epoch);
  return true;
}

void NodeSums::begin_job(int home, std::uint64_t epoch) {
  Job job;
  job.home = home;
  job.epoch = epoch;
  for (const int neighbour : site_.neighbours()) {
    if (published(neighbour, epoch)) add_part(job, neighbour);
  }
  if (job.parts.empty()) return;
  const RelayLayout& own = site_.own();
  const std::size_t sum = own.sum(home, site_.bank(epoch));
  std::fill_n(site_.at<std::uint32_t>(site_.rank, sum + own.sum_masks()), job.tokens, 0U);
  if (job.form != nullptr && (job.form->content.flags & kRowWeights) != 0) {
    std::fill_n(site_.at<float>(site_.rank, sum + own.sum_weights()),
                static_cast<std::size_t>(job.tokens) * static_cast<std::size_t>(site_.top_k), 0.0F);
  }
  jobs_.push_back(std::move(job));
}

void NodeSums::add_part(Job& job, int rank) const {
  const RelayLayout& there = site_.layout(rank);
  const std::size_t answer = there.answer(job.home, site_.bank(job.epoch));
  const auto& head = *site_.at<const AnswerHead>(rank, answer);
  if (head.epoch != job.epoch || head.by_node == 0) return;
  Part part;
  part.rank = rank;
  part.cell = site_.at<const Cell>(rank, answer + there.answer_content());
  part.tokens = site_.at<const std::int32_t>(rank, answer + there.answer_tokens());
  part.masks = site_.at<const std::uint32_t>(rank, answer + there.answer_masks());
  part.weights = site_.at<const float>(rank, answer + there.answer_weights());
  part.rows = site_.at<const std::byte>(
      rank,
      there.answer_row(
          job.home, static_cast<int>(job.epoch % static_cast<unsigned>(there.answer_depth())), 0));
  // Calls that differ cannot be added up: home sees the cells, and reports them.
  const bool fits = job.form == nullptr || agree(job.form->content, part.cell->content);
  part.records = fits ? head.slots : 0;
  if (part.records > 0) {
    if (job.form == nullptr) job.form = part.cell;
    job.tokens = std::max(job.tokens, part.tokens[part.records - 1] + 1);
    job.row_bytes = head.row_bytes;
  }
  job.parts.push_back(part);
}

void NodeSums::sum_group(Job& job) {
  const RelayLayout& own = site_.own();
  const RelayLayout& there = site_.layout(job.home);
  const int group = job.next_group++;
  const int first = group * own.group_rows();
  const int end = std::min(job.tokens, first + own.group_rows());
  for (int token = first; token < end; ++token) sum_token(job, token);

  const int bank = site_.bank(job.epoch);
  const int stage = static_cast<int>(job.epoch % static_cast<unsigned>(own.answer_depth()));
  const auto* masks =
      site_.at<const std::uint32_t>(site_.rank, own.sum(job.home, bank) + own.sum_masks());
  const std::size_t stride = site_.window.combine_row_stride();
  bool begun = false;
  for_each_run(
      first, end, [&](int token) { return masks[token] != 0; },
      [&](int run, int after) {
        if (!begun) {
          postings_.begin(job.home, there.answer_rows_slot(site_.rank, stage, group),
                          {protocol::Kind::combine, bank});
        }
        begun = true;
        add_rows(postings_, kWindowRegion, own.sum_row(job.home, stage, run), stride,
                 there.answer_landing(site_.rank, job.epoch, run), stride, job.row_bytes,
                 after - run);
      });
  if (begun) postings_.end();
}

void NodeSums::sum_token(Job& job, int token) {
  const RelayLayout& own = site_.own();
  const std::size_t sum = own.sum(job.home, site_.bank(job.epoch));
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
    if ((job.form->content.flags & kRowWeights) == 0) continue;
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
  args.out = site_.at<std::byte>(
      site_.rank,
      own.sum_row(job.home, static_cast<int>(job.epoch % static_cast<unsigned>(own.answer_depth())),
                  token));
  kernels_.sum(args);
}

void NodeSums::post_head(const Job& job) {
  const RelayLayout& own = site_.own();
  const RelayLayout& there = site_.layout(job.home);
  const int bank = site_.bank(job.epoch);
  const std::size_t sum = own.sum(job.home, bank);
  auto& head = *site_.at<AnswerHead>(site_.rank, sum);
  auto* cells = site_.at<Cell>(site_.rank, sum + window::kAnswerHeadBytes);
  const auto neighbours = site_.neighbours();
  head = {job.epoch, job.tokens, static_cast<std::int32_t>(neighbours.size()), job.row_bytes, 1};
  for (std::size_t i = 0; i < neighbours.size(); ++i) cells[i] = {};
  for (const Part& part : job.parts) {
    Cell& cell = cells[site_.nodes.place_of(part.rank)];
    cell = *part.cell;
    cell.content.in_sum = 1;
  }
  const auto tokens = static_cast<std::size_t>(job.tokens);
  postings_.begin(job.home, there.answer_slot(site_.rank, bank), {protocol::Kind::combine, bank});
  postings_.add(kWindowRegion, sum, there.answer_head(site_.rank, bank),
                window::kAnswerHeadBytes + neighbours.size() * sizeof(Cell));
  postings_.add(kWindowRegion, sum + own.sum_masks(),
                site_.window.combine_mask(site_.rank, bank, 0), tokens * sizeof(std::uint32_t));
  if (job.form != nullptr && (job.form->content.flags & kRowWeights) != 0) {
    postings_.add(kWindowRegion, sum + own.sum_weights(),
                  site_.window.row_weights(site_.rank, bank, 0),
                  tokens * static_cast<std::size_t>(site_.top_k) * sizeof(float));
  }
  postings_.end();
}

}  // namespace sluice::relay
