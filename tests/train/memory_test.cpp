// Where memory runs out: in a step, while a model is made, in verify's reference.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "phalanx/train/reference.h"
#include "phalanx/train/trainer.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"
#include "tests/train/small_run.h"

#ifndef PHALANX_SANITIZED  // which needs terabytes of address space

namespace phalanx::testing {
namespace {

// The address space that this process has, and `bytes` more.
void leave_address_space(rlim_t bytes) {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t limit = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limits{limit, limit};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limits), 0);
}

TEST(OutOfMemory, InAStepNamesTheUnitAndTheSizes) {
  run_ranks(1, [&](World& world) {
    Trainer trainer(small_config(), borrowed(world));
    const Microbatch batch{at::zeros({1 << 18, 7}, at::kLong), at::zeros({1 << 18, 7}, at::kLong),
                           0};
    leave_address_space(100 << 20);  // hidden states are 176 MB
    try {
      trainer.model().evaluate(batch);
      ADD_FAILURE() << "262144 sequences fit into the memory that is left";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::environment);
      const std::string said = error.what();
      EXPECT_NE(said.find("out of memory in the forward of unit root"), std::string::npos) << said;
      EXPECT_NE(said.find("262144 sequences of 7 tokens"), std::string::npos) << said;
      EXPECT_NE(said.find("; lower batch.micro, shorten data.sequence_length or use more ranks"),
                std::string::npos)
          << "recompute does not help where nothing is kept: " << said;
    }
  });
}
// One block of 50 MB.
Config large_config(Strategy strategy) {
  Config config = small_config(Dtype::float32);
  config.model.spec.hidden_size = 1024;
  config.model.spec.num_attention_heads = config.model.spec.num_key_value_heads = 16;
  config.model.spec.intermediate_size = 4096;
  config.model.spec.num_hidden_layers = 1;
  config.parallel.strategy = strategy;
  return config;
}

TEST(OutOfMemory, BeforeTheFirstStepNamesWhatHasNoRoom) {
  struct Case {
    Strategy strategy;
    rlim_t left;
    std::vector<std::string> said;
  };
  for (const auto& [strategy, left, said] : std::vector<Case>{
           {Strategy::none,
            80 << 20,
            {"no memory for unit blocks.0 (50", " bytes of parameters", "in 1 shards",
             "strategy none"}},
           {Strategy::optim_grads_params,
            80 << 20,
            {"no memory for two gradient buffers of the largest unit, 50",
             "strategy optim_grads_params"}},
           {Strategy::none,
            150 << 20,
            {"no memory for the state of the optimizer adamw for 50", "strategy none"}}})
    run_ranks(1, [&, strategy = strategy, left = left, &said = said](World& world) {
      SCOPED_TRACE(said[0]);
      at::set_num_threads(1);  // new threads would want address space too
      leave_address_space(left);
      try {
        Trainer trainer(large_config(strategy), borrowed(world));
        ADD_FAILURE() << "it fits into the memory that is left";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::environment);
        expect_contains(error.what(), said);
      }
    });
}

// It says nothing about the layout: not the exit code of a difference.
TEST(OutOfMemory, OfTheReferenceIsNoDifference) {
  const auto statuses = fork_ranks(1, [](const WorldInfo&) {
    at::set_num_threads(1);
    const Config config = large_config(Strategy::none);
    Reference reference(config, verification_trials(config, 1));
    leave_address_space(20 << 20);
    reference.start();
    try {
      reference.ready(std::chrono::seconds(20));
      ADD_FAILURE() << "it fits into the memory that is left";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::environment);
      expect_contains(error.what(), {"the reference on one rank: out of memory on the host: "});
    }
    return 0;
  });
  EXPECT_EQ(statuses[0], 0);
}

}  // namespace
}  // namespace phalanx::testing

#endif
