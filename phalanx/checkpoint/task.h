#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace phalanx {

/// What a task and its owner tell each other while it runs.
struct TaskProgress {
  std::atomic<int64_t> done{0};        ///< bytes, or anything that grows
  std::atomic<bool> cancelled{false};  ///< the task is to return soon, with any result
};

/// Work on a thread of its own. It may outlive its owner (a disk that never answers), so `work`
/// owns all that it uses.
class Task {
 public:
  Task() = default;  ///< of nothing: done, with the result ""
  explicit Task(std::function<std::string(TaskProgress&)> work);
  ~Task();  ///< cancels and waits
  Task(Task&&) = default;
  Task& operator=(Task&& other);

  enum class Status : uint8_t { running, done, failed };
  Status status() const;
  int64_t progress() const;
  void cancel();
  /// Until it ended, at most `time`.
  void wait_for(std::chrono::microseconds time) const;
  /// Waits. What `work` returned or threw; once.
  std::string result();
  /// Lets it run on, unheard.
  void abandon();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace phalanx
