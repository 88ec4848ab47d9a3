#include "phalanx/train/comparison.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/comm/scalar.h"
#include "phalanx/config/check.h"
#include "phalanx/parallel/parallelize.h"
#include "phalanx/parallel/update.h"
#include "phalanx/train/evaluation.h"
#include "phalanx/train/same_config.h"

namespace phalanx {
namespace {

constexpr const char* quantities[] = {"loss", "norm", "gradient", "parameter"};
enum Quantity : size_t { loss, norm, gradient, parameter };

double norm_of(const at::Tensor& tensor) { return tensor.norm().item<double>(); }

// NaN counts as the largest difference.
double relative(double difference, double scale) {
  if (difference == 0) return 0;
  const double error = difference / scale;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

// One trial under the layout, compared step by step.
class TrialComparison {
 public:
  TrialComparison(const Config& config, Mesh& mesh, const Reference& reference, size_t trial,
                  double planted_error)
      : config_(config),
        group_(data_parallel_group(mesh)),
        reference_(reference),
        trial_(trial),
        device_(cpu_device()),
        model_(make_model(config.model.spec, scalar_type(config.parallel.compute)), config.parallel,
               {.seed = uint64_t(config.train.seed),
                .recompute = config.recompute.mode == RecomputeMode::full},
               mesh, *device_),
        update_(reference.trials()[trial].optimizer, reference.trials()[trial].lr,
                model_.engine()) {
    if (group_.rank() == group_.size() - 1) factor_ = 1 + planted_error;
    for (const char* quantity : quantities)
      worst_.push_back({name(reference.trials()[trial].optimizer.kind), quantity, 0,
                        comparison_tolerance(config.parallel.compute)});
  }

  std::vector<Difference> run() {
    const Batches batches(open_training_data(config_),
                          {.global = config_.batch.global,
                           .micro = config_.batch.micro,
                           .ranks = group_.size(),
                           .rank = group_.rank()},
                          config_.data.seed);
    require_same_data(group_, "data.train", &batches.data());
    const int64_t steps = reference_.trials()[trial_].steps;
    for (int64_t step = 0; step < steps; ++step) one_step(batches, step);
    compare_parameters(steps);
    return worst_;
  }

 private:
  void one_step(const Batches& batches, int64_t step) {
    DataParallel& engine = model_.engine();
    const int64_t consumed = step * config_.batch.global, count = batches.microbatches();
    const double tokens = double(batches.counted_tokens(consumed));
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += model_.train(batches.microbatch(consumed, i), factor_ / tokens, step, i + 1 == count);
    engine.wait_gradients();
    const double total = all_reduce(group_, sum, Op::sum, {"verify", "loss"});
    const double gradient_norm = engine.gradient_norm();
    const double expected = reference_.loss(trial_, step);
    const double expected_norm = reference_.norm(trial_, step);
    note(Quantity::loss, relative(std::abs(total / tokens - expected), std::abs(expected)), "",
         step + 1, 0);
    note(Quantity::norm, relative(std::abs(gradient_norm - expected_norm), expected_norm), "",
         step + 1, 0);
    compare_gradients(step);
    update_.step(gradient_norm);
    engine.finish_step();
  }

  void compare_gradients(int64_t step) {
    size_t index = 0;
    for (size_t u = 0; u < model_.engine().unit_count(); ++u) {
      Unit& unit = model_.engine().unit(u);
      const at::Tensor& shard = unit.gradient_shard();
      // One whole buffer, or as many as ranks where nothing is sharded.
      const at::Tensor copies = gather(shard, unit.name()).view({-1, unit.plan().padded});
      for (size_t p = 0; p < unit.parameters().size(); ++p, ++index) {
        const UnitPlan::Slot& slot = unit.plan().slots[p];
        const at::Tensor expected = reference_.gradient(trial_, step, index);
        const double scale = std::max(norm_of(expected), 1e-3 * reference_.norm(trial_, step));
        compare(Quantity::gradient, copies.narrow(1, slot.offset, slot.count), expected, scale,
                unit.parameters()[p]->spec.name, step + 1);
      }
    }
  }

  // Every rank's own sight of the parameters after the last step.
  void compare_parameters(int64_t steps) {
    size_t index = 0;
    for (size_t u = 0; u < model_.engine().unit_count(); ++u) {
      Unit& unit = model_.engine().unit(u);
      unit.gather();
      for (const Parameter& parameter : unit.parameters()) {
        const at::Tensor expected = reference_.values(trial_, index++);
        compare(Quantity::parameter, gather(parameter->tensor.detach().flatten(), unit.name()),
                expected, norm_of(expected), parameter->spec.name, steps);
      }
      unit.release_parameters();
    }
  }

  // [ranks, elements]. What is gathered may be overwritten afterwards.
  at::Tensor gather(const at::Tensor& mine, const std::string& unit) {
    at::Tensor all = at::empty({group_.size(), mine.numel()}, mine.options());
    const Handle handle = group_.all_gather(all, mine, {unit, "verify"});
    handle.wait();
    handle.wait_inputs();
    return all;
  }

  void compare(Quantity quantity, const at::Tensor& copies, const at::Tensor& expected,
               double scale, const std::string& tensor, int64_t step) {
    if (group_.rank() != 0) return;
    for (int64_t rank = 0; rank < copies.size(0); ++rank) {
      const double difference = norm_of(copies[rank].to(at::kDouble) - expected);
      note(quantity, relative(difference, scale), tensor, step, int(rank));
    }
  }

  void note(Quantity quantity, double error, const std::string& tensor, int64_t step, int rank) {
    Difference& worst = worst_[quantity];
    if (worst.step > 0 && error <= worst.error) return;
    worst.error = error;
    worst.tensor = tensor;
    worst.step = step;
    worst.rank = rank;
  }

  const Config& config_;
  Communicator& group_;
  const Reference& reference_;
  const size_t trial_;
  std::unique_ptr<Device> device_;
  ParallelModel model_;
  ShardedUpdate update_;
  double factor_ = 1;
  std::vector<Difference> worst_;
};

std::string where(const Difference& difference) {
  std::string place = text("step ", difference.step);
  if (!difference.tensor.empty())
    place = text(difference.tensor, ", ", place, ", rank ", difference.rank);
  return place;
}

}  // namespace

double comparison_tolerance(Dtype dtype) { return dtype == Dtype::float64 ? 1e-9 : 1e-5; }

bool Comparison::equal() const {
  return !worst.empty() &&
         std::all_of(worst.begin(), worst.end(), [](const auto& each) { return each.equal(); });
}

const Difference& Comparison::largest() const {
  return *std::max_element(worst.begin(), worst.end(), [](const auto& a, const auto& b) {
    return a.error / a.tolerance < b.error / b.tolerance;
  });
}

Comparison compare_with_one_rank(const Config& config, Mesh& mesh, const Reference& reference,
                                 double planted_error) {
  const Config resolved = resolve(config, mesh.degrees().world());
  Comparison comparison;
  for (size_t trial = 0; trial < reference.trials().size(); ++trial)
    for (Difference& worst : TrialComparison(resolved, mesh, reference, trial, planted_error).run())
      comparison.worst.push_back(std::move(worst));
  // What rank 0 found holds for all.
  at::Tensor errors = at::empty({int64_t(comparison.worst.size())}, at::kDouble);
  for (size_t i = 0; i < comparison.worst.size(); ++i) errors[i] = comparison.worst[i].error;
  data_parallel_group(mesh).broadcast(errors, 0, {"verify", "verify"}).wait();
  for (size_t i = 0; i < comparison.worst.size(); ++i)
    comparison.worst[i].error = errors[i].item<double>();
  return comparison;
}

std::string comparison_table(const Comparison& comparison) {
  std::string table = "optimizer  quantity   largest error  tolerance  where\n";
  for (const Difference& worst : comparison.worst) {
    char line[96];
    std::snprintf(line, sizeof line, "%-10s %-10s %13.1e  %9.0e  ", worst.optimizer.c_str(),
                  worst.quantity.c_str(), worst.error, worst.tolerance);
    table += line + where(worst) + (worst.equal() ? "\n" : "  DIFFERS\n");
  }
  const Difference& largest = comparison.largest();
  if (comparison.equal())
    table += "equal: this layout computes what one rank computes\n";
  else
    table += text("different: the ", largest.quantity, " under ", largest.optimizer, " (",
                  where(largest), ") is off by ", largest.error, ", more than ", largest.tolerance,
                  "\n");
  return table;
}

std::string comparison_json(const Comparison& comparison, const Config& config, int ranks) {
  nlohmann::ordered_json line = {{"equal", comparison.equal()},
                                 {"ranks", ranks},
                                 {"strategy", name(config.parallel.strategy)},
                                 {"dtype", name(config.parallel.compute)},
                                 {"differences", nlohmann::ordered_json::array()}};
  for (const Difference& worst : comparison.worst)
    line["differences"].push_back({{"optimizer", worst.optimizer},
                                   {"quantity", worst.quantity},
                                   {"error", worst.error},
                                   {"tolerance", worst.tolerance},
                                   {"equal", worst.equal()},
                                   {"tensor", worst.tensor},
                                   {"step", worst.step},
                                   {"rank", worst.rank}});
  return line.dump();
}

}  // namespace phalanx
