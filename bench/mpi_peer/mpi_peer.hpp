// SPDX-License-Identifier: MIT
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "check.hpp"
#include "contestant.hpp"
#include "row_space.hpp"
#include "send_order.hpp"

namespace sluice::bench {

/// Bytes of one record of the peer: row, scales, then what the receiver must know of the row, padded
/// to cache lines.
///
///   record := row scales meta padding
///   meta   := token:i32 k:i32 expert:i32 weight:f32            (per route)
///           | token:i32 zero:i32 (expert:i32 weight:f32)[K]    (per rank; -1 elsewhere)
struct RecordLayout {
  std::size_t row_bytes = 0;
  std::size_t scale_bytes = 0;
  std::size_t meta_bytes = 0;
  std::size_t stride = 0;

  static RecordLayout of(const Case& bench_case, SendOrder::Rows rows);
};

/// Dispatch and combine the usual way, as well as it can be done over MPI collectives: counts by one
/// MPI_Alltoall, rows packed by destination, one MPI_Alltoallv each way, results summed at home with
/// the same vectorised row functions that Sluice uses. docs/benchmarking.md describes its phases.
class MpiPeer final : public Contestant {
 public:
  static Result<std::unique_ptr<MpiPeer>> create(MPI_Comm comm, const Workload& workload,
                                                 SendOrder::Rows rows);
  ~MpiPeer() override;
  MpiPeer(const MpiPeer&) = delete;
  MpiPeer& operator=(const MpiPeer&) = delete;

  std::string name() const override { return per_rank_ ? "mpi-row-per-rank" : "mpi"; }
  Role role() const override { return per_rank_ ? Role::peer_variant : Role::peer; }
  std::string about() const override { return about_; }
  /// What about() says.
  void say(std::string about) { about_ = std::move(about); }
  std::vector<std::string> operations() const override { return {"dispatch", "combine", "pair"}; }
  Status run(int operation, int set) override;
  void start_counting() override;
  Traffic traffic() const override;
  Result<std::int64_t> check(int set) override;

 private:
  friend class PeerFloor;  // Measures parts of the work on the same buffers.

  MpiPeer(MPI_Comm comm, const Workload& workload, SendOrder::Rows rows, int rank);
  Status allocate();
  Status dispatch(int set);
  Status combine(int set);

  void pack(int set);
  void count_received();
  void unpack();
  /// The rows of y in the order in which they go home: y itself where that is their order.
  const std::byte* pack_results(int set);
  void sum(int set);

  const std::byte* x(int set) const;
  const std::byte* y(int set) const;
  RowsView rows_view() const;

  MPI_Comm comm_;
  const Workload& workload_;
  const Case& case_;
  bool per_rank_;
  int rank_;
  std::string about_;
  RecordLayout record_;
  std::size_t result_bytes_;  // Of one row on its way home.
  RowSpace space_;
  Pool x_pool_;
  SendOrder order_;
  MPI_Datatype record_type_ = MPI_DATATYPE_NULL;
  MPI_Datatype result_type_ = MPI_DATATYPE_NULL;

  std::vector<std::int32_t> announced_;               // [R * groups] by the sources.
  std::vector<int> received_rows_, received_firsts_;  // [R]
  std::vector<std::int64_t> run_rows_;                // [R * groups] first row of every run.

  Buffer x_, y_, out_;
  Buffer send_;                  // Packed records; then the results that came home.
  Buffer received_;              // Records as they came; in expert layouts then the packed results.
  Buffer rows_, scales_, meta_;  // expert layouts: what the user gets.

  std::int64_t dispatches_ = 0, combines_ = 0;
  std::int64_t dispatch_bytes_ = 0, combine_bytes_ = 0;
};

}  // namespace sluice::bench
