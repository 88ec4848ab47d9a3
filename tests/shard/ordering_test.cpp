// What the engine asks of its device, one request left out at a time: the recording device must
// miss whatever orders two accesses.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "phalanx/device/recording.h"
#include "tests/shard/toy_training.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ToyRun;
using testing::ToyTraining;

enum class Fault { wait, record, early_free };

/// Passes the engine's requests on to a recording device, but for one: a wait() is dropped, a
/// record() gives an event that every wait() overlooks, or a buffer is freed as soon as it has been
/// written. Waits that earlier ones imply are not counted: they change no clock.
class FaultyDevice final : public Device {
 public:
  FaultyDevice(RecordingDevice& inner, Fault fault, int index)
      : inner_(inner), fault_(fault), index_(index) {}

  int candidates() const { return candidates_; }
  const std::string& left_out() const { return left_out_; }
  /// The proof that the request was not needed: nothing ran on the awaited stream since what is
  /// known to be done, or nothing on the waiting one until a later wait had the same effect or the
  /// end came.
  bool redundant() {
    close_gaps();
    for (const Gap& gap : gaps_)
      if ((gap.open ? activity(gap.stream) : gap.activity) > gap.before) return false;
    return fault_ != Fault::early_free;
  }

  Stream stream(std::string_view name) override {
    const Stream stream = inner_.stream(name);
    names_[stream.index] = name;
    return stream;
  }
  void launch(Stream stream, std::string_view name, std::span<const Access> accesses,
              std::function<void()> work) override {
    close_gaps();
    ++launches_[stream.index];
    last_[stream.index] = name;
    inner_.launch(stream, name, accesses, std::move(work));
    if (to_free_.defined()) inner_.free(stream, std::exchange(to_free_, {}));
  }
  using Device::launch;
  Event record(Stream stream) override {
    const Event event = inner_.record(stream);
    points_[event.position] = text(names_[stream.index], " after ", last_[stream.index]);
    until_[event.position] = activity(stream);
    if (chosen(Fault::record, "event of " + points_[event.position]))
      overlooked_.insert(event.position);
    return event;
  }
  void wait(Stream stream, const Event& event) override {
    close_gaps();
    if (inner_.ordered(stream, event)) return inner_.wait(stream, event);
    const std::string what = text(names_[stream.index], " waits for ", points_[event.position]);
    int64_t& known = known_[{stream.index, event.stream}];
    const bool news = until_[event.position] > known;
    if (chosen(Fault::wait, what) || overlooked_.contains(event.position)) {
      if (news) gaps_.push_back({stream, event, activity(stream)});
      return;
    }
    known = std::max(known, until_[event.position]);
    inner_.wait(stream, event);
  }
  at::Tensor allocate(Stream stream, int64_t bytes, std::string_view name) override {
    at::Tensor buffer = inner_.allocate(stream, bytes, name);
    if (chosen(Fault::early_free, text("buffer of ", name))) to_free_ = freed_ = buffer;
    return buffer;
  }
  void free(Stream stream, at::Tensor buffer) override {
    if (!freed_.is_same(buffer)) inner_.free(stream, std::move(buffer));
  }

 private:
  struct Gap {
    Stream stream;
    Event event;
    int64_t before, activity = 0;
    bool open = true;
  };

  bool chosen(Fault fault, const std::string& what) {
    if (fault != fault_ || candidates_++ != index_) return false;
    left_out_ = what;
    return true;
  }
  // Launches, and on the compute stream LibTorch's operations on buffers of the engine's.
  int64_t activity(Stream stream) {
    return launches_[stream.index] +
           (stream.index == compute().index ? inner_.operator_accesses() : 0);
  }
  void close_gaps() {
    for (Gap& gap : gaps_)
      if (gap.open && inner_.ordered(gap.stream, gap.event)) {
        gap.open = false;
        gap.activity = activity(gap.stream);
      }
  }

  RecordingDevice& inner_;
  const Fault fault_;
  const int index_;
  int candidates_ = 0;
  std::string left_out_;
  std::map<int, std::string> names_{{0, "compute"}}, last_;
  std::map<int, int64_t> launches_;
  std::map<int64_t, std::string> points_;         // by event
  std::map<int64_t, int64_t> until_;              // activity before it
  std::map<std::pair<int, int>, int64_t> known_;  // to a stream, of another one's activity
  std::set<int64_t> overlooked_;
  std::vector<Gap> gaps_;
  at::Tensor to_free_, freed_;
};

struct Outcome {
  int candidates;
  std::string left_out;
  bool missed, redundant;  ///< on any rank; on all
};

// Two steps of the engine with one request left out on all ranks.
Outcome train_without(Communicator& group, const ToyRun& run, Fault fault, int index) {
  RecordingDevice recording(RecordingDevice::Side::early);
  FaultyDevice device(recording, fault, index);
  bool redundant = false;
  {
    ToyTraining training(run, group, device);
    training.step();
    training.step();
    training.settle();
    redundant = device.redundant();
    group.barrier({"end", "check"});
  }
  at::Tensor verdict = at::zeros({2}, at::kInt);
  verdict[0] = int(!recording.races().empty());
  verdict[1] = int(!redundant);
  group.all_reduce(verdict, Op::max, {"verdict", "check"}).wait();
  return {device.candidates(), device.left_out(), verdict[0].item<int>() == 1,
          verdict[1].item<int>() == 0};
}

void leave_out_each(Communicator& group, const ToyRun& run, Fault fault) {
  const char* names[] = {"wait()", "record()", "early free"};
  SCOPED_TRACE(text(run.name(), ", ", names[int(fault)]));
  const Outcome whole = train_without(group, run, fault, -1);
  EXPECT_FALSE(whole.missed) << "the engine orders everything";
  std::map<std::string, int> missed, redundant;
  for (int index = 0; index < whole.candidates; ++index) {
    const Outcome outcome = train_without(group, run, fault, index);
    EXPECT_TRUE(outcome.missed || outcome.redundant)
        << "not noticed, and not proved to be redundant: " << outcome.left_out;
    ++(outcome.missed ? missed : redundant)[outcome.left_out];
  }
  if (whole.candidates > 0) {
    EXPECT_FALSE(missed.empty());
  }
  if (group.rank() != 0) return;
  for (const auto& [what, count] : redundant)
    std::cout << run.name() << ", " << names[int(fault)] << ": redundant " << count << " x " << what
              << "\n";
}

TEST(Ordering, EveryRequestThatIsLeftOutIsMissedOrProvedRedundant) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    testing::run_ranks(
        2,
        [](World& world) {
          auto group = testing::everyone(world);
          for (auto strategy : {Strategy::none, Strategy::optim, Strategy::optim_grads,
                                Strategy::optim_grads_params}) {
            ToyRun run;
            run.strategy = strategy, run.blocks = 2, run.microbatches = 2;
            run.width = 8, run.inner = 8;
            // Another transport changes what the engine asks for only where it gathers each use.
            const bool gathers = strategy == Strategy::optim_grads_params;
            if (!gathers && world.options().transport == Transport::gloo) continue;
            for (auto fault : {Fault::wait, Fault::record, Fault::early_free})
              leave_out_each(*group, run, fault);
          }
        },
        {.transport = transport, .deadline = std::chrono::seconds(150)});
}

}  // namespace
}  // namespace phalanx
