#include "phalanx/spec/layout.h"

#include <algorithm>

#include "phalanx/base/error.h"
#include "phalanx/spec/model.h"

namespace phalanx {
namespace {

struct Axis {
  Dim dim;
  int64_t size;
};

// The world as the dense layers see it, outermost first; the last dimension is the fastest.
std::vector<Axis> dense_view(const Degrees& d) {
  return {{Dim::pp, d.pp},
          {Dim::dp_replicate, d.dp_replicate},
          {Dim::dp_shard, d.dp_shard},
          {Dim::cp, d.cp},
          {Dim::tp, d.tp}};
}

// The same ranks as the experts see them: dp_shard x cp x tp is edp x ep x etp.
std::vector<Axis> expert_view(const Degrees& d) {
  const int64_t inner = int64_t{d.dp_shard} * d.cp * d.tp;
  const int64_t expert = int64_t{d.ep} * d.etp;
  require(expert >= 1 && inner % expert == 0, ExitCode::usage, "ep x etp = ", d.ep, " x ", d.etp,
          " does not divide dp_shard x cp x tp = ", inner, "; choose divisors");
  return {{Dim::pp, d.pp},
          {Dim::dp_replicate, d.dp_replicate},
          {Dim::edp, inner / expert},
          {Dim::ep, d.ep},
          {Dim::etp, d.etp}};
}

// The view that has all of `dims`.
std::vector<Axis> view_of(const Degrees& degrees, Dims dims) {
  constexpr Dims expert_only = {Dim::edp, Dim::ep, Dim::etp};
  constexpr Dims dense_only = {Dim::dp_shard, Dim::cp, Dim::tp};
  bool expert = false, dense = false;
  for (Dim dim : dims.list()) {
    expert = expert || expert_only.contains(dim);
    dense = dense || dense_only.contains(dim);
  }
  require(!(expert && dense), ExitCode::usage, "group ", dims.name(),
          " mixes the dimensions of experts (edp, ep, etp) with dp_shard, cp, tp; name one kind");
  return expert ? expert_view(degrees) : dense_view(degrees);
}

std::vector<int64_t> coordinates(const std::vector<Axis>& view, int64_t rank) {
  std::vector<int64_t> at(view.size());
  for (size_t i = view.size(); i-- > 0; rank /= view[i].size) at[i] = rank % view[i].size;
  require(rank == 0, ExitCode::usage, "a rank is outside of the layout's world");
  return at;
}

class Rules {
 public:
  std::vector<Violation> found;

  void require_that(bool holds, const char* key, const std::string& sentence) {
    if (!holds) found.push_back({key, sentence});
  }
  void unavailable(bool asked, const char* key, const std::string& value,
                   const std::string& instead) {
    if (asked)
      found.push_back(
          {key, text(key, " = ", value, " is not available in this version; use ", instead)});
  }
};

// All digits of a product that may be beyond 64 bits.
std::string whole(double product) {
  std::string digits = std::to_string(product);
  return digits.substr(0, digits.find('.'));
}

void check_degrees(const Degrees& degrees, int world_size, Rules& rules) {
  struct Named {
    const char* key;
    int size;
    bool available;
  };
  bool all_positive = true;
  for (const Named& degree : {Named{"parallel.dp_replicate", degrees.dp_replicate, false},
                              {"parallel.dp_shard", degrees.dp_shard, true},
                              {"parallel.cp", degrees.cp, false},
                              {"parallel.tp", degrees.tp, false},
                              {"parallel.pp", degrees.pp, false},
                              {"parallel.ep", degrees.ep, false},
                              {"parallel.etp", degrees.etp, false}}) {
    rules.require_that(degree.size >= 1, degree.key,
                       text(degree.key, " = ", degree.size, " is no degree; give at least 1"));
    rules.unavailable(degree.size > 1 && !degree.available, degree.key, std::to_string(degree.size),
                      "1");
    all_positive = all_positive && degree.size >= 1;
  }
  if (!all_positive) return;
  std::vector<std::string> factors;
  double product = 1;
  for (const Axis& axis : dense_view(degrees)) {
    factors.push_back(text(name(axis.dim), " ", axis.size));
    product *= static_cast<double>(axis.size);
  }
  rules.require_that(
      product == world_size, "parallel",
      text("the degrees ", join(factors, " x "), " = ", whole(product), " are not the world of ",
           world_size, world_size == 1 ? " rank" : " ranks",
           "; change them (parallel.dp_shard left out takes the rest) or start ", whole(product),
           " ranks"));
  const double inner = double(degrees.dp_shard) * degrees.cp * degrees.tp;
  const double expert = double(degrees.ep) * degrees.etp;
  rules.require_that(
      expert <= inner && int64_t(inner) % int64_t(expert) == 0, "parallel.ep",
      text("parallel.ep x parallel.etp = ", whole(expert),
           " does not divide dp_shard x cp x tp = ", whole(inner), "; choose divisors"));
}

void check_precision(const Layout& layout, Rules& rules) {
  struct Named {
    const char* key;
    Dtype dtype;
  };
  auto is_available = [](Dtype dtype) {
    return dtype == Dtype::float32 || dtype == Dtype::float64;
  };
  for (const Named& type : {Named{"precision.compute", layout.compute},
                            {"precision.master", layout.master},
                            {"precision.reduce", layout.reduce_dtype}}) {
    rules.unavailable(!is_available(type.dtype), type.key, name(type.dtype), "float32 or float64");
    const bool both = is_available(type.dtype) && is_available(layout.compute);
    rules.unavailable(both && type.dtype != layout.compute, type.key,
                      text(name(type.dtype), " with precision.compute = ", name(layout.compute)),
                      "the same for both");
  }
}

}  // namespace

const char* name(Strategy strategy) {
  switch (strategy) {
    case Strategy::none:
      return "none";
    case Strategy::optim:
      return "optim";
    case Strategy::optim_grads:
      return "optim_grads";
    case Strategy::optim_grads_params:
      return "optim_grads_params";
  }
  return "?";
}

const char* name(Reduce reduce) {
  switch (reduce) {
    case Reduce::every_microbatch:
      return "every_microbatch";
    case Reduce::step:
      return "step";
  }
  return "?";
}

const char* name(Cut cut) {
  switch (cut) {
    case Cut::flat:
      return "flat";
    case Cut::per_parameter:
      return "per_parameter";
  }
  return "?";
}

std::vector<Violation> check(const ModelSpec& model, const Layout& layout, int world_size) {
  Rules rules;
  rules.require_that(world_size >= 1, "world",
                     text("a world of ", world_size, " ranks is none; start at least 1"));
  check_degrees(layout.degree, world_size, rules);
  rules.unavailable(layout.cut == Cut::per_parameter, "parallel.cut", "per_parameter", "flat");
  check_precision(layout, rules);
  rules.require_that(
      layout.prefetch >= 0, "parallel.prefetch",
      text("parallel.prefetch = ", layout.prefetch, " is no number of units; give at least 0"));
  const bool whole_gradients =
      layout.strategy == Strategy::none || layout.strategy == Strategy::optim;
  rules.require_that(
      layout.reduce == Reduce::every_microbatch || !whole_gradients, "parallel.reduce",
      text("parallel.reduce = step has no meaning with parallel.strategy = ", name(layout.strategy),
           ", which always reduces once per step; leave it out"));
  return rules.found;
}

int coordinate(const Degrees& degrees, int rank, Dim dim) {
  const auto view = view_of(degrees, {dim});
  const auto at = coordinates(view, rank);
  for (size_t i = 0; i < view.size(); ++i)
    if (view[i].dim == dim) return static_cast<int>(at[i]);
  return 0;  // unreachable: every dimension is in its view
}

std::vector<int> group_ranks(const Degrees& degrees, int rank, Dims dims) {
  const auto view = view_of(degrees, dims);
  const auto mine = coordinates(view, rank);
  std::vector<int> ranks;
  for (int other = 0; other < degrees.world(); ++other) {
    const auto theirs = coordinates(view, other);
    bool same = true;
    for (size_t i = 0; i < view.size(); ++i)
      same = same && (dims.contains(view[i].dim) || mine[i] == theirs[i]);
    if (same) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace phalanx
