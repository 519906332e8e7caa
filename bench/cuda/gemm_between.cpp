// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <vector>

#include "cublas_library.hpp"
#include "cuda_objects.hpp"
#include "gemm_result.hpp"
#include "gpu.hpp"
#include "memory/cuda/cuda_status.hpp"
#include "random.hpp"
#include "sluice_contestant.hpp"

namespace sluice::bench {
namespace {

using memory::cuda_status;

/// What cuBLAS recommends from sm_90 on.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

/// c [m, n] = a [m, k] times the transpose of b [n, k], as a layer has its weights.
class Gemm {
 public:
  Gemm(CublasLibrary library, Place& place, const GemmSize& size)
      : library_(library), place_(place), size_(size) {}
  ~Gemm() {
    if (handle_ != nullptr) (void)library_.destroy(handle_);
  }
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// All of its memory is taken here.
  Status prepare() {
    Status status = library_.check(library_.create(&handle_), "a handle");
    if (status) status = take(size_.m, size_.k, a_);
    if (status) status = take(size_.n, size_.k, b_);
    if (status) status = take(size_.m, size_.n, c_);
    if (!status) return status;
    const Result<std::byte*> workspace = place_.take(kWorkspaceBytes);
    if (!workspace) return workspace.status();
    workspace_ = *workspace;
    return use(place_.stream());
  }

  /// Where it is queued from now on.
  Status use(void* stream) {
    // The workspace after the stream, which resets it.
    Status status = library_.check(library_.set_stream(handle_, stream), "a stream");
    return status ? library_.check(library_.set_workspace(handle_, workspace_, kWorkspaceBytes),
                                   "a workspace")
                  : status;
  }

  std::string version() const {
    int version = 0;
    if (library_.get_version(handle_, &version) != CublasLibrary::kSuccess) return "unknown";
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  /// Queues it, for the first `rows` rows of a.
  Status queue(int rows) {
    static constexpr float kOne = 1.0F;
    static constexpr float kZero = 0.0F;
    using L = CublasLibrary;
    // Our rows are cuBLAS's columns, so it makes the transpose of c.
    return library_.check(library_.gemm(handle_, L::kTransposed, L::kPlain, size_.n, rows, size_.k,
                                        &kOne, b_, L::kBf16, size_.k, a_, L::kBf16, size_.k, &kZero,
                                        c_, L::kBf16, size_.n, L::kComputeF32, L::kAlgorithm),
                          "the GEMM");
  }
  Status queue() { return queue(size_.m); }
  Status queue_half() { return queue(size_.m / 2); }

 private:
  /// Random values, 0.5 to 2 and their negatives: a GPU draws less power for zeros, and clocks higher.
  Status take(int rows, int columns, std::byte*& matrix) {
    const std::size_t bytes =
        static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * 2;
    const Result<std::byte*> memory = place_.take(bytes);
    if (!memory) return memory.status();
    matrix = *memory;
    std::vector<std::uint64_t> values(bytes / sizeof(std::uint64_t));
    Random random(mix(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), 0));
    for (std::uint64_t& four : values) {
      four = (random.next() & 0x80FF'80FF'80FF'80FFULL) | 0x3F00'3F00'3F00'3F00ULL;
    }
    return place_.write(matrix, reinterpret_cast<const std::byte*>(values.data()), bytes);
  }

  CublasLibrary library_;
  Place& place_;
  GemmSize size_;
  CublasLibrary::Handle handle_ = nullptr;
  std::byte *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *workspace_ = nullptr;
};

class GemmBetween final : public Contestant {
 public:
  GemmBetween(std::shared_ptr<SluiceContestant> ours, Place& place, const Case& bench_case,
              int rank, CublasLibrary library)
      : ours_(std::move(ours)),
        place_(place),
        stream_(static_cast<cudaStream_t>(place.stream())),
        sets_(bench_case.sets),
        rank_(rank),
        gemm_(library, place, *bench_case.gemm) {}

  std::string name() const override { return "gemm"; }
  Role role() const override { return Role::gemm; }
  std::string about() const override { return "cuBLAS " + gemm_.version(); }
  std::vector<std::string> operations() const override {
    std::vector<std::string> names;
    for (const char* operation : {"dispatch", "combine"}) {
      for (const char* part : kGemmPartNames)
        names.push_back(fmt::format("{} {}", operation, part));
    }
    return names;
  }

  Status prepare() {
    Status status = gemm_.prepare();
    for (Event* event : {&begin_, &end_, &fork_, &join_}) {
      if (status) status = cuda_status(cudaEventCreate(event->put()), "an event");
    }
    if (!status) return status;
    return cuda_status(cudaStreamCreateWithFlags(other_.put(), cudaStreamNonBlocking), "a stream");
  }

  /// Kernels are loaded by their first launch, which must not wait for others that spin.
  Status run(int /*operation*/, int /*set*/) override {
    Status status = gemm_.queue();
    if (status) status = gemm_.queue_half();
    return status ? place_.finish() : status;
  }

  /// Every set with the GEMM between the halves.
  Result<std::int64_t> check(int set) override {
    ours_->split([this] { return gemm_.queue(); });
    Result<std::int64_t> wrong = ours_->check(set);
    ours_->split({});
    return wrong;
  }

  /// Microseconds by the device's clock.
  Result<double> time(int operation, GemmPart part, int iteration) {
    Status status = start(iteration);
    if (status) {
      status = part < GemmPart::call ? queue(operation, part, iteration)
                                     : queue_beside(operation, part, iteration);
    }
    ours_->split({});
    if (status) status = ours_->settle();
    if (!status) return status;
    return microseconds_between(begin_, end_);
  }

 private:
  int set_of(int iteration) const { return iteration >= 0 ? iteration % sets_ : 0; }
  Status mark(const Event& event) { return mark(event, stream_); }
  static Status mark(const Event& event, cudaStream_t stream) {
    return cuda_status(cudaEventRecord(event.get(), stream), "an event");
  }
  static Status wait(cudaStream_t stream, const Event& event) {
    return cuda_status(cudaStreamWaitEvent(stream, event.get(), 0), "an event");
  }
  Status timed_gemm() {
    Status status = mark(begin_);
    if (status) status = gemm_.queue();
    return status ? mark(end_) : status;
  }

  /// The same before everything that is timed. While the GEMM runs the host queues what follows, so that
  /// the GPU does not wait for it; it leaves operands and code in the caches. After the pairs all ranks are
  /// on a par. The last pair's handle is that of the set.
  Status start(int iteration) {
    Status status = gemm_.queue();
    for (int pair = 0; status && pair < kHeadOperations; ++pair) {
      status = ours_->run(kPair, set_of(iteration));
    }
    return status;
  }

  Status queue(int operation, GemmPart part, int iteration) {
    const bool whole = part == GemmPart::whole;
    const bool outside = whole || part == GemmPart::halves;
    Status status;
    if (part == GemmPart::late && starts_late(rank_, iteration)) status = gemm_.queue_half();
    if (status && outside) status = mark(begin_);
    ours_->split([&] {
      if (whole) return gemm_.queue();
      return part == GemmPart::between || part == GemmPart::late ? timed_gemm() : Status();
    });
    if (status) status = ours_->run(operation, set_of(iteration));
    if (status && part == GemmPart::alone) status = timed_gemm();
    return status && outside ? mark(end_) : status;
  }

  /// The call is queued first: its blocks are to be placed before the GEMM's.
  Status queue_beside(int operation, GemmPart part, int iteration) {
    const auto mark_if = [&](bool wanted, const Event& event, cudaStream_t stream) {
      return wanted ? mark(event, stream) : Status();
    };
    const bool call = part == GemmPart::call || part == GemmPart::with;
    const bool both = part == GemmPart::both;
    const bool beside = part == GemmPart::beside;
    Status status = mark(fork_);
    if (status) status = mark_if(call || both, begin_, stream_);
    if (status) status = ours_->run(operation, set_of(iteration));
    if (status) status = mark_if(call, end_, stream_);
    if (!status || part == GemmPart::call) return status;
    status = wait(other_.get(), fork_);
    if (status) status = gemm_.use(other_.get());
    if (status) status = mark_if(beside, begin_, other_.get());
    if (status) status = gemm_.queue();
    if (status) status = mark_if(beside, end_, other_.get());
    const Status back = gemm_.use(stream_);
    if (status) status = back;
    if (status) status = mark(join_, other_.get());
    if (status) status = wait(stream_, join_);
    return status ? mark_if(both, end_, stream_) : status;
  }

  std::shared_ptr<SluiceContestant> ours_;
  Place& place_;
  cudaStream_t stream_;
  Stream other_;
  int sets_;
  int rank_;
  Gemm gemm_;
  Event begin_, end_, fork_, join_;
};

/// One sample of everything. `sample` < 0: warm-up, nothing is kept.
Status sample_parts(Board& board, GemmBetween& gemm, int first, int sample) {
  constexpr int kAll = 2 * kGemmParts;
  // Not in step with the turns in which ranks are late.
  const bool backwards = (sample & 2) != 0;
  for (int turn = 0; turn < kAll; ++turn) {
    const int which = backwards ? kAll - 1 - turn : turn;
    // What ranks send for the next part must not arrive while the GEMM of this one runs.
    if (const Result<std::int64_t> start = board.pass(); !start) return start.status();
    const Result<double> us =
        gemm.time(which / kGemmParts, static_cast<GemmPart>(which % kGemmParts), sample);
    if (!us) {
      return Status(us.status().code(),
                    fmt::format("gemm, {}: {}", gemm.operations()[static_cast<std::size_t>(which)],
                                us.status().message()));
    }
    if (sample < 0) continue;
    board.samples(board.rank(), first + which)[static_cast<std::size_t>(sample)] = *us;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Contestant>> gemm_between(std::shared_ptr<SluiceContestant> ours,
                                                 Place& place, const Case& bench_case, int rank,
                                                 const std::string& library) {
  Result<CublasLibrary> cublas = CublasLibrary::load(library);
  if (!cublas) return cublas.status();
  auto gemm = std::make_unique<GemmBetween>(std::move(ours), place, bench_case, rank, *cublas);
  if (Status status = gemm->prepare(); !status) return status;
  return std::unique_ptr<Contestant>(std::move(gemm));
}

Status measure_gemm(Board& board, const Case& bench_case, const Contestants& contestants,
                    Progress& progress) {
  auto& gemm = static_cast<GemmBetween&>(*contestants.back());
  const int first = series_of(contestants, contestants.size() - 1);
  if (Status status = gemm.run(0, 0); !status) return status;
  for (int iteration = -bench_case.warmup; iteration < bench_case.iterations; ++iteration) {
    progress.tick("measuring a GEMM", iteration, bench_case.iterations);
    if (Status status = sample_parts(board, gemm, first, iteration); !status) return status;
  }
  const Result<std::int64_t> done = board.pass();
  return done ? Status() : done.status();
}

}  // namespace sluice::bench
