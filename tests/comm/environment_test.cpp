// What a rank takes from the variables of the program that started it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "phalanx/base/error.h"
#include "phalanx/comm/world.h"
#include "tests/comm/support.h"

namespace phalanx::testing {
namespace {

/// Sets variables for its lifetime; all that launchers set are cleared first.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_MCA_ess_base_jobid",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "SLURM_NNODES",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_NODEID",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS"})
      unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    names_ = variables;
  }
  ~Variables() {
    for (const auto& [name, value] : names_) unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> names_;
};

TEST(Environment, ReadsTheEnvironmentOfLaunchers) {
  {
    Variables none({});
    const auto info = world_from_environment();
    EXPECT_EQ(info.rank, 0);
    EXPECT_EQ(info.size, 1);
  }
  {
    Variables torchrun({{"RANK", "5"},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "node1"},
                        {"MASTER_PORT", "29500"}});
    const auto info = world_from_environment();
    EXPECT_EQ(info.rank, 5);
    EXPECT_EQ(info.size, 8);
    EXPECT_EQ(info.local_rank, 1);
    EXPECT_EQ(info.local_size, 4);
    EXPECT_EQ(info.master_address, "node1");
    EXPECT_EQ(info.master_port, 29500);
  }
  {
    Variables mpirun({{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"OMPI_MCA_ess_base_jobid", "3298885633"}});
    const auto info = world_from_environment();
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.master_address, "127.0.0.1");
    EXPECT_GT(info.master_port, 1024);
    EXPECT_EQ(world_from_environment().master_port, info.master_port);
  }
  const std::map<std::string, std::string> slurm{
      {"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"},
      {"SLURM_LOCALID", "1"}, {"SLURM_NNODES", "2"}, {"SLURM_JOB_ID", "77"},
      {"SLURM_STEP_ID", "0"}};
  {
    Variables srun(slurm);
    expect_error(ExitCode::environment, {"srun", "MASTER_ADDR", "several hosts"},
                 [] { world_from_environment(); });
    setenv("MASTER_ADDR", "10.0.0.1", 1);
    const auto info = world_from_environment();
    unsetenv("MASTER_ADDR");
    EXPECT_EQ(info.rank, 3);
    EXPECT_EQ(info.local_size, 2);
    EXPECT_GT(info.master_port, 1024);
  }
}

// Both are steps of one task, in a job of several.
TEST(Environment, ABatchScriptAndAShellOfSlurmAreOneRank) {
  using Map = std::map<std::string, std::string>;
  for (Map more : {Map{}, Map{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "4294967290"}}}) {
    SCOPED_TRACE(more.empty() ? "batch" : "shell");
    more.insert({{"SLURM_NTASKS", "8"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_LOCALID", "0"},
                 {"SLURM_NODEID", "0"},
                 {"SLURM_NNODES", "2"},
                 {"SLURM_JOB_ID", "77"}});
    Variables alone(more);
    EXPECT_EQ(world_from_environment().size, 1);
  }
}

// The step is that of the shell on one host and of the launcher's helper on another.
TEST(Environment, ThePortOfMpirunDoesNotDependOnSlurmsStep) {
  std::map<std::string, std::string> mpirun{{"OMPI_COMM_WORLD_RANK", "0"},
                                            {"OMPI_COMM_WORLD_SIZE", "2"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                            {"OMPI_MCA_ess_base_jobid", "3298885633"}};
  const auto port = [&] {
    Variables variables(mpirun);
    return world_from_environment().master_port;
  };
  const int without = port();
  for (const char* step : {"0", "4294967290"}) {
    mpirun["SLURM_STEP_ID"] = step;
    EXPECT_EQ(port(), without) << step;
  }
}

TEST(Environment, TwoStepsOfSrunHaveTwoPorts) {
  std::map<std::string, std::string> srun{{"SLURM_PROCID", "0"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_NNODES", "1"},
                                          {"SLURM_JOB_ID", "77"}};
  std::vector<int> ports;
  for (const char* step : {"0", "1", "4294967290"}) {
    srun["SLURM_STEP_ID"] = step;
    Variables variables(srun);
    ports.push_back(world_from_environment().master_port);
  }
  EXPECT_NE(ports[0], ports[1]);
  EXPECT_NE(ports[1], ports[2]);
}

TEST(Environment, ReadsHowManyTasksSrunStartedOnThisNode) {
  struct Case {
    std::string list, node;
    int tasks;
  };
  for (const auto& [list, node, tasks] : std::vector<Case>{{"2,1", "0", 2},
                                                           {"2,1", "1", 1},
                                                           {"2(x3),1", "0", 2},
                                                           {"2(x3),1", "2", 2},
                                                           {"2(x3),1", "3", 1},
                                                           {"1(x2),3,12(x10)", "2", 3},
                                                           {"1(x2),3,12(x10)", "12", 12},
                                                           {"4", "0", 4},
                                                           {"2,1", "2", 0},
                                                           {"2(x3", "0", 0},
                                                           {"2(x),1", "0", 0},
                                                           {"two", "0", 0},
                                                           {"", "0", 0}}) {
    SCOPED_TRACE(list + " on node " + node);
    Variables srun({{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "200"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", node},
                    {"SLURM_NNODES", "13"},
                    {"SLURM_JOB_ID", "77"},
                    {"MASTER_ADDR", "10.0.0.1"},
                    {"SLURM_STEP_TASKS_PER_NODE", list}});
    if (tasks > 0)
      EXPECT_EQ(world_from_environment().local_size, tasks);
    else
      expect_error(ExitCode::environment, {"SLURM_STEP_TASKS_PER_NODE is '" + list + "'", node},
                   [] { world_from_environment(); });
  }
}

// Rank 1 is the second of two on the first of two nodes, which have three tasks in all.
TEST(Environment, UnevenTasksOfSrunAreTakenOrRefusedForWhatIsMissing) {
  const std::map<std::string, std::string> uneven{
      {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_LOCALID", "1"},
      {"SLURM_NNODES", "2"}, {"SLURM_JOB_ID", "77"},        {"MASTER_ADDR", "10.0.0.1"}};
  Variables srun(uneven);
  expect_error(ExitCode::environment, {"3 tasks on 2 nodes", "SLURM_STEP_TASKS_PER_NODE"},
               [] { world_from_environment(); });
  auto whole = uneven;
  whole["SLURM_STEP_TASKS_PER_NODE"] = "2,1";
  whole["SLURM_NODEID"] = "0";
  Variables told(whole);
  const auto info = world_from_environment();
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.size, 3);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 2);
}

// MPICH's and Intel's mpirun: no job number to derive a port from.
TEST(Environment, RanksOfHydraAreOneRun) {
  const std::map<std::string, std::string> hydra{
      {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const auto with = [&](std::map<std::string, std::string> more) {
    more.insert(hydra.begin(), hydra.end());
    return more;
  };
  {
    Variables alone(hydra);
    expect_error(ExitCode::environment, {"mpirun started 4", "MASTER_ADDR"},
                 [] { world_from_environment(); });
  }
  {
    Variables addressed(with({{"MASTER_ADDR", "10.0.0.1"}}));
    expect_error(ExitCode::environment, {"mpirun started PMI_RANK without MASTER_PORT"},
                 [] { world_from_environment(); });
  }
  // Its helpers may be tasks of srun: theirs is not the rank.
  Variables whole(with({{"MASTER_ADDR", "10.0.0.1"},
                        {"MASTER_PORT", "29500"},
                        {"SLURM_PROCID", "1"},
                        {"SLURM_STEP_NUM_TASKS", "2"}}));
  const auto info = world_from_environment();
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 2);
  EXPECT_EQ(info.master_port, 29500);
}

TEST(Environment, ALauncherThatSaysNothingOfHostsIsRefusedAndSrunsRankCounts) {
  {
    Variables unknown({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
    expect_error(ExitCode::environment, {"PMI_SIZE=2", "MPI_LOCALRANKID", "set RANK"},
                 [] { world_from_environment(); });
  }
  {
    Variables one({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}});
    EXPECT_EQ(world_from_environment().size, 1);
  }
  Variables srun({{"PMI_RANK", "1"},
                  {"PMI_SIZE", "2"},
                  {"SLURM_PROCID", "1"},
                  {"SLURM_STEP_NUM_TASKS", "2"},
                  {"SLURM_LOCALID", "1"},
                  {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(world_from_environment().rank, 1);
}

TEST(Environment, ContradictionsAreErrors) {
  const auto refuse = [](const std::map<std::string, std::string>& variables,
                         const std::vector<std::string>& fragments) {
    Variables environment(variables);
    expect_error(ExitCode::environment, fragments, [] { world_from_environment(); });
  };
  refuse({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK is 2", "WORLD_SIZE is 2"});
  refuse({{"RANK", "0"}}, {"RANK", "no WORLD_SIZE"});
  refuse({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, {"RANK is 'x'", "not a number", "unset it"});
  refuse({{"RANK", "4294967290"}, {"WORLD_SIZE", "2"}}, {"RANK is '4294967290'", "too large"});
  refuse({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
         {"LOCAL_RANK is 2"});
  refuse({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}},
         {"MASTER_PORT", "set"});
  refuse({{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
         {"mpirun", "MASTER_PORT"});
}

}  // namespace
}  // namespace phalanx::testing
