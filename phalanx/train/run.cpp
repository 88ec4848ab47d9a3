#include "phalanx/train/run.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "phalanx/base/files.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "phalanx/comm/scalar.h"
#include "phalanx/config/check.h"
#include "phalanx/config/write.h"
#include "phalanx/device/limits.h"
#include "phalanx/device/memory.h"
#include "phalanx/train/progress.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The loop, with what it remembers between steps.
class Run {
 public:
  Run(Trainer& trainer, const RunOptions& options)
      : trainer_(trainer), config_(trainer.config()), options_(options) {
    first_ = trainer.everyone().rank() == 0;
    if (first_) progress_.emplace(options.descriptor);
  }

  Ending go() {
    open_checkpoints();  // refuses if another run is here, whose checkpoints come and go
    const std::string resumed = resume();
    // Before anything is written, or deleted to make space.
    if (trainer_.step() >= config_.train.steps) {
      say(text(config_.train.run_dir, " has finished its ", config_.train.steps,
               " steps; train on with --train.steps=", trainer_.step() + config_.train.steps));
      return Ending::was_finished;
    }
    const std::string start = initialize(resumed);
    prepare_folder(resumed);
    measure_limit();
    if (first_) announce(resumed, start);
    start_ = last_save_ = Clock::now();
    while (true) {
      const bool last = one_step();
      const Wishes wishes = agree();
      if (checkpointer_) checkpointer_->poll();
      tell_saved();
      if (checkpointer_ && (due() || wishes.save || last || wishes.stop)) save();
      if (!last && !wishes.stop) continue;
      wait_for_checkpoint();
      return last ? finish() : interrupt();
    }
  }

 private:
  // Goes on where [train] resume says; returns the path of what was loaded.
  std::string resume() {
    const std::string& wanted = config_.train.resume;
    if (wanted == "never") return "";
    const bool newest = wanted == "auto";
    const std::string path =
        newest ? newest_checkpoint(trainer_.everyone(), checkpoint_folder(config_),
                                   config_.checkpoint.local,
                                   {.verify_hashes = config_.checkpoint.verify_hashes})
                     .value_or("")
               : wanted;
    // The newest of a folder was verified when it was chosen.
    return path.empty() ? "" : trainer_.load(path, newest);
  }

  // What a run that resumes nothing starts from; a program may have loaded something before.
  std::string initialize(const std::string& resumed) {
    if (!resumed.empty()) return "";
    return trainer_.begun()
               ? text("the trainer as its program left it, after step ", trainer_.step())
               : trainer_.initialize();
  }

  void prepare_folder(const std::string& resumed) {
    if (checkpointer_) {
      checkpointer_->warn_of_later(trainer_.step());
      checkpointer_->prepare(trainer_.state(), resumed);
    }
    agree_with_first(trainer_.everyone(), "folder", [&] {
      replace_file(config_.train.run_dir + "/config.toml", to_toml(config_), ExitCode::environment);
      metrics_.emplace(config_.train.run_dir + "/metrics.jsonl");
      return std::string();
    });
  }

  void open_checkpoints() {
    agree_with_first(trainer_.everyone(), "folder", [&] {
      make_folder(config_.train.run_dir, ExitCode::environment);
      return std::string();
    });
    const CheckpointConfig& wanted = config_.checkpoint;
    if (!wanted.saves()) return;
    checkpointer_.emplace(trainer_.everyone(), checkpoint_folder(config_),
                          SaveOptions{.keep = static_cast<int>(wanted.keep),
                                      .keep_every = wanted.keep_every,
                                      .async = wanted.async,
                                      .verify_after_save = wanted.verify_after_save,
                                      .local = wanted.local});
  }

  void measure_limit() {
    trainer_.everyone().barrier({"run", "limit"});
    limit_ = reduce(matrix_product_rate(scalar_type(config_.parallel.compute)).best, Op::sum);
  }

  void announce(const std::string& resumed, const std::string& start) {
    const Layout& layout = config_.parallel;
    const ModelSpec& model = config_.model.spec;
    Communicator& world = trainer_.everyone();
    const int ranks = world.size();
    say(text("phalanx " PHALANX_VERSION ": ", ranks, ranks == 1 ? " rank" : " ranks", " x ",
             options_.threads, options_.threads == 1 ? " thread" : " threads",
             ranks == 1 ? "" : text(" over ", world.transport()), ", strategy ",
             name(layout.strategy), ", ", name(layout.compute)));
    say(text("machine: ", std::llround(limit_ / 1e9),
             " GFLOP/s in matrix products, the limit (GEMM) that steps are compared with"));
    say(text("model: ", model.kind, ", ", model.num_hidden_layers, " layers of ", model.hidden_size,
             ", ", count_text(double(parameter_count(model))), " parameters"));
    say(text("data: ", trainer_.data().describe()));
    say(text("step: ", config_.batch.global, " sequences of ", config_.data.sequence_length, " = ",
             count_text(double(trainer_.tokens_per_step())), " tokens; microbatches of ",
             config_.batch.micro, " x ", ranks, ", ", accumulation(config_), " per step"));
    say(resumed.empty() ? text("starting in ", config_.train.run_dir, " from ", start)
                        : text("resumed from ", resumed, " after step ", trainer_.step()));
  }

  // An error that all ranks throw together, a loss that is no number, says nothing of the save in
  // flight: that is finished first.
  StepMetrics train_step() {
    try {
      return trainer_.train_step();
    } catch (const Error& error) {
      if (error.code() == ExitCode::check_failed) try {
          wait_for_checkpoint();
        } catch (const Error& lost) {
          if (first_) log_warning(text("the last checkpoint was not saved: ", lost.what()));
        }
      throw;
    }
  }

  // True if it was the last.
  bool one_step() {
    const auto begin = Clock::now();
    StepMetrics metrics = train_step();
    busy_ += seconds_since(begin);
    ++unlogged_;
    ++done_;
    const bool last = trainer_.step() >= config_.train.steps;
    const int64_t every = config_.train.evaluate_every;
    const bool evaluates = every > 0 && (trainer_.step() % every == 0 || last);
    const bool logged =
        trainer_.step() % config_.train.log_every == 0 || last || evaluates || done_ == 1;
    const double step_seconds = busy_ / double(unlogged_);
    metrics.step_ms = 1e3 * step_seconds;
    metrics.tokens_per_s = double(trainer_.tokens_per_step()) / step_seconds;
    if (logged) peak_ = static_cast<int64_t>(reduce(double(rank_memory().peak), Op::max));
    metrics.peak_memory_bytes = peak_;
    show(metrics, logged);
    if (evaluates) evaluate(metrics);
    if (save_ms_ > 0) metrics.save_ms = save_ms_;
    if (logged && metrics_) metrics_->append(metrics);
    if (logged) busy_ = 0, unlogged_ = 0, save_ms_ = 0;
    return last;
  }

  void show(const StepMetrics& metrics, bool logged) {
    if (!progress_) return;
    if (metrics.skipped)
      say(text("step ", metrics.step, ": loss ", metrics.loss, ", gradient norm ",
               metrics.grad_norm, ": no update (train.on_nan = \"skip\")"));
    const double flops = flops_per_token(config_.model.spec, config_.data.sequence_length);
    const double remaining = double(config_.train.steps - metrics.step);
    progress_->update(
        progress_line(metrics, config_.train.steps, metrics.tokens_per_s * flops / limit_,
                      remaining * seconds_since(start_) / double(done_)),
        logged);
  }

  void evaluate(StepMetrics& metrics) {
    const std::optional<Evaluation> evaluation = trainer_.evaluate();
    if (!evaluation) return;
    metrics.validation_loss = evaluation->loss;
    say(text("step ", metrics.step, ": validation loss ", evaluation->loss, " (perplexity ",
             std::exp(evaluation->loss), ") over ", count_text(double(evaluation->tokens)),
             " tokens"));
  }

  // By steps; by time and on demand all ranks agree on (Wishes).
  bool due() const {
    const CheckpointConfig& wanted = config_.checkpoint;
    const auto every = [&](int64_t steps) { return steps > 0 && trainer_.step() % steps == 0; };
    return every(wanted.every) || every(wanted.keep_every);
  }

  void save() {
    const auto begin = Clock::now();
    show_saving();
    checkpointer_->save(trainer_.run_state(), trainer_.state());
    last_save_ = Clock::now();
    save_ms_ += 1e3 * seconds_since(begin);
    tell_saved();
  }

  void wait_for_checkpoint() {
    if (!checkpointer_ || !checkpointer_->in_flight()) return;
    show_saving();
    checkpointer_->finish();
    tell_saved();
  }

  void show_saving() {
    if (progress_ && progress_->live())
      progress_->update(text("step ", trainer_.step(), ": saving ..."), true);
  }

  void tell_saved() {
    if (!checkpointer_ || checkpointer_->newest() == saved_) return;
    saved_ = checkpointer_->newest();
    if (progress_) progress_->clear();
    say(text("saved ", saved_));
  }

  Ending finish() {
    if (progress_) progress_->clear();
    say(text("finished ", trainer_.step(), " steps, ", count_text(double(trainer_.tokens())),
             " tokens, in ", duration_text(seconds_since(start_))));
    return Ending::finished;
  }

  Ending interrupt() {
    if (progress_) progress_->clear();
    say(checkpointer_ ? text("interrupted after step ", trainer_.step(), " and saved; ",
                             config_.train.resume == "auto" ? "the same command goes on from there"
                                                            : "continue with --train.resume=auto")
                      : text("interrupted after step ", trainer_.step(),
                             "; nothing was saved (checkpoint.every = 0)"));
    return checkpointer_ ? Ending::interrupted : Ending::not_saved;
  }

  double reduce(double value, Op op) {
    return all_reduce(trainer_.everyone(), value, op, {"run", "metrics"});
  }

  // What any rank wants after this step.
  struct Wishes {
    bool stop = false, save = false;
  };
  Wishes agree() {
    const double minutes = config_.checkpoint.every_minutes;
    const bool late = first_ && minutes > 0 && seconds_since(last_save_) >= 60 * minutes;
    at::Tensor all = at::full({3}, 0, at::kDouble);
    double* wishes = all.mutable_data_ptr<double>();
    wishes[0] = options_.stop_requested(), wishes[1] = late;
    wishes[2] = options_.saves_requested();
    trainer_.everyone().all_reduce(all, Op::max, {"run", "wishes"}).wait();
    const auto requested = static_cast<int64_t>(wishes[2]);
    const bool asked = requested > requested_;
    requested_ = std::max(requested_, requested);
    if (asked && !checkpointer_)
      say("asked to save, but nothing is saved in this run (checkpoint.every = 0)");
    return {.stop = wishes[0] != 0, .save = asked || wishes[1] != 0};
  }

  void say(const std::string& line) {
    if (progress_) progress_->say(line);
  }

  Trainer& trainer_;
  const Config& config_;
  const RunOptions& options_;
  bool first_ = false;
  std::optional<Checkpointer> checkpointer_;
  std::optional<MetricsFile> metrics_;  // rank 0
  std::optional<Progress> progress_;    // rank 0
  double limit_ = 0;                    // floating-point operations per second, all ranks
  Clock::time_point start_, last_save_;
  int64_t requested_ = 0;  // saves that were asked for, and made
  double save_ms_ = 0;     // that steps waited for saves, since the last logged one
  double busy_ = 0;        // seconds in steps since the last logged one
  int64_t unlogged_ = 0;   // and their number
  int64_t done_ = 0;       // steps of this process
  int64_t peak_ = 0;
  std::string saved_;
};

}  // namespace

Ending run_training(Trainer& trainer, const RunOptions& options) {
  return Run(trainer, options).go();
}

}  // namespace phalanx
