#include "phalanx/train/reference.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iostream>
#include <thread>

#include "phalanx/base/error.h"
#include "phalanx/device/failure.h"
#include "phalanx/models/model.h"
#include "phalanx/nn/init.h"
#include "phalanx/optim/learning_rate.h"
#include "phalanx/optim/optimizer.h"
#include "phalanx/parallel/parallelize.h"
#include "phalanx/train/evaluation.h"
#include "phalanx/train/progress.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t sentence_bytes = 1024;

// What rank 0 tells the others about its reference.
struct Report {
  enum State : int32_t { running, ready, failed } state = running;
  int32_t code = 0;
  char sentence[sentence_bytes] = {};
};

Report report_of(Reference& reference, std::chrono::milliseconds patience) {
  Report report;
  try {
    report.state = reference.ready(patience) ? Report::ready : Report::running;
  } catch (const Error& error) {
    report.state = Report::failed;
    report.code = static_cast<int32_t>(error.code());
    std::strncpy(report.sentence, error.what(), sentence_bytes - 1);
  }
  return report;
}

}  // namespace

std::vector<Trial> verification_trials(const Config& config, int64_t steps) {
  OptimizerConfig sgd = config.optimizer;
  sgd.kind = OptimizerKind::sgd;
  sgd.momentum = 0.9;
  const LrConfig sgd_rate{.schedule = LrScheduleKind::constant, .peak = 0.1};
  std::vector<Trial> trials = {{sgd, sgd_rate, steps}};
  if (config.parallel.compute != Dtype::float64) return trials;
  OptimizerConfig adamw = config.optimizer;
  adamw.kind = OptimizerKind::adamw;
  adamw.momentum = 0;
  const LrConfig adamw_rate{.schedule = LrScheduleKind::constant, .peak = config.lr.peak};
  trials.push_back({adamw, adamw_rate, steps});
  return trials;
}

Reference::Reference(Config config, std::vector<Trial> trials)
    : config_(std::move(config)), trials_(std::move(trials)) {
  for (const BlockSpec& block : blocks(config_.model.spec))
    for (const ParameterSpec& parameter : block.parameters) {
      counts_.push_back(element_count(parameter.local_shape));
      total_ += counts_.back();
    }
  int64_t elements = 0;
  for (const Trial& trial : trials_) elements += trial.steps * (2 + total_) + total_;
  bytes_ = elements * sizeof(double) + sentence_bytes;
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(memory != MAP_FAILED, ExitCode::environment, "no memory for ", bytes_,
          " bytes of results to compare with: ", std::strerror(errno));
  memory_ = static_cast<double*>(memory);
}

Reference::~Reference() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  if (memory_) munmap(memory_, bytes_);
}

// Per trial: for each step loss, norm, gradients; then the values.
double* Reference::at(size_t trial, int64_t step) const {
  double* start = memory_;
  for (size_t i = 0; i < trial; ++i) start += trials_[i].steps * (2 + total_) + total_;
  return start + step * (2 + total_);
}

char* Reference::sentence() const {
  return reinterpret_cast<char*>(memory_) + bytes_ - sentence_bytes;
}

at::Tensor Reference::view(double* start, size_t parameter) const {
  for (size_t i = 0; i < parameter; ++i) start += counts_[i];
  return at::from_blob(start, {counts_[parameter]}, at::TensorOptions().dtype(at::kDouble));
}

at::Tensor Reference::gradient(size_t trial, int64_t step, size_t parameter) const {
  return view(at(trial, step) + 2, parameter);
}

at::Tensor Reference::values(size_t trial, size_t parameter) const {
  return view(at(trial, trials_[trial].steps), parameter);
}

void Reference::start() {
  std::cout.flush();
  process_ = fork();
  require(process_ >= 0, ExitCode::environment,
          "cannot start the reference's process: ", std::strerror(errno));
  if (process_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  try {
    compute();
  } catch (...) {
    const Error error = current_failure();
    std::strncpy(sentence(), error.what(), sentence_bytes - 1);
    code = static_cast<int>(error.code());
  }
  _exit(code);
}

bool Reference::ready(std::chrono::milliseconds patience) {
  const auto end = Clock::now() + patience;
  while (process_ > 0) {
    int status = 0;
    const pid_t ended = waitpid(process_, &status, WNOHANG);
    require(ended >= 0 || errno == EINTR, ExitCode::environment,
            "cannot wait for the reference's process: ", std::strerror(errno));
    if (ended > 0)
      take_status(status);
    else if (Clock::now() >= end)
      return false;
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void Reference::take_status(int status) {
  process_ = -1;
  if (WIFSIGNALED(status))
    fail(ExitCode::environment, "the reference on one rank was killed by signal ", WTERMSIG(status),
         WTERMSIG(status) == SIGKILL ? ", as when memory runs out" : "",
         "; a smaller config needs less memory");
  if (WEXITSTATUS(status) == 0) return;
  fail(static_cast<ExitCode>(WEXITSTATUS(status)), "the reference on one rank: ",
       sentence()[0] ? sentence() : text("exit code ", WEXITSTATUS(status)));
}

void Reference::compute() {
  for (size_t trial = 0; trial < trials_.size(); ++trial) compute_trial(trial);
}

void Reference::compute_trial(size_t index) {
  const Trial& trial = trials_[index];
  const auto model = make_model(config_.model.spec, scalar_type(config_.parallel.compute));
  const std::vector<Parameter> parameters = parameters_of(*model);
  allocate_and_initialize(parameters, config_.train.seed);
  std::vector<OptimizerShard> shards;
  for (const Parameter& parameter : parameters)
    shards.push_back(
        {parameter->tensor.detach(), {}, parameter->spec.decay && parameter->spec.trainable});
  const auto optimizer = make_optimizer(trial.optimizer, shards);
  const Batches batches(open_training_data(config_),
                        {.global = config_.batch.global, .micro = config_.batch.micro},
                        config_.data.seed);
  for (int64_t step = 0; step < trial.steps; ++step) {
    const int64_t consumed = step * config_.batch.global;
    const double tokens = double(batches.counted_tokens(consumed));
    double sum = 0;
    for (int64_t i = 0; i < batches.microbatches(); ++i) {
      const Microbatch batch = batches.microbatch(consumed, i);
      const Context context{.step = step,
                            .sequence = {.first_sample = batch.first_row},
                            .seed = uint64_t(config_.train.seed)};
      const Loss loss = forward_loss(*model, batch.tokens, batch.targets, 1 / tokens, context);
      run_backward({loss.scaled}, {at::ones({}, loss.scaled.options())});
      sum += loss.sum;
    }
    double squares = 0;
    for (size_t p = 0; p < parameters.size(); ++p) {
      at::Tensor& gradient = parameters[p]->tensor.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(shards[p].values);
      shards[p].gradient = gradient;
      at::Tensor kept = this->gradient(index, step, p);
      kept.copy_(gradient.flatten());
      squares += kept.dot(kept).item<double>();
    }
    at(index, step)[0] = sum / tokens;
    at(index, step)[1] = std::sqrt(squares);
    optimizer->step(shards, learning_rate(trial.lr, step),
                    clip_factor(std::sqrt(squares), trial.optimizer.clip_norm));
    for (const Parameter& parameter : parameters) parameter->tensor.mutable_grad().reset();
  }
  for (size_t p = 0; p < parameters.size(); ++p) values(index, p).copy_(shards[p].values.flatten());
}

void wait_together(Communicator& everyone, Reference& reference,
                   std::chrono::milliseconds deadline) {
  const auto pause = std::min(std::chrono::milliseconds(1000), deadline / 4);
  const bool first = everyone.rank() == 0;
  const auto start = Clock::now();
  double shown = 0;
  Progress progress;
  while (true) {
    at::Tensor told = at::zeros({sizeof(Report)}, at::kByte);
    Report report;
    if (first) report = report_of(reference, pause);
    std::memcpy(told.data_ptr(), &report, sizeof(Report));
    const Handle handle = everyone.broadcast(told, 0, {"verify", "reference"});
    handle.wait();
    handle.wait_inputs();
    std::memcpy(&report, told.data_ptr(), sizeof(Report));
    if (report.state == Report::ready) return;
    if (report.state == Report::failed) fail(static_cast<ExitCode>(report.code), report.sentence);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const bool logged = seconds >= shown + 30;
    if (logged) shown = seconds;
    if (first)
      progress.update("the reference on one rank computes: " + duration_text(seconds), logged);
  }
}

}  // namespace phalanx
