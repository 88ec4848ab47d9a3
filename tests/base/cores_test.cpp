#include "phalanx/base/cores.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include "phalanx/base/cgroup.h"

namespace phalanx {
namespace {

TEST(Cores, AreThoseOfTheAffinityMask) {
  const pid_t child = fork();  // cannot be undone everywhere
  if (child == 0) {
    cpu_set_t mask;
    sched_getaffinity(0, sizeof(mask), &mask);
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask) && kept++ > 0) CPU_CLR(cpu, &mask);
    sched_setaffinity(0, sizeof(mask), &mask);
    _exit(available_cores() == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// A quota lies on the group that systemd, Slurm or a container made, above this process's or not.
TEST(Cores, TheTightestLimitOfTheGroupsAboveCounts) {
  struct Case {
    std::string group;                                       // /proc/self/cgroup
    std::vector<std::pair<std::string, std::string>> files;  // below /sys/fs/cgroup
    std::optional<double> cores;
    std::optional<int64_t> bytes;
  };
  const std::vector<Case> cases = {
      {"0::/\n", {{"cpu.max", "150000 100000"}, {"memory.max", "1000"}}, 1.5, 1000},
      {"0::/\n", {{"cpu.max", "max 100000"}, {"memory.max", "max"}}, {}, {}},
      {"0::/a.slice/b.service\n", {{"a.slice/b.service/cpu.max", "200000 100000"}}, 2.0, {}},
      {"0::/a.slice/b.service\n",
       {{"a.slice/cpu.max", "100000 100000"},
        {"a.slice/b.service/cpu.max", "max 100000"},
        {"a.slice/memory.max", "500"},
        {"a.slice/b.service/memory.max", "700"}},
       1.0,
       500},
      // The host's path, of which a container sees nothing.
      {"0::/docker/abc\n", {{"cpu.max", "300000 100000"}}, 3.0, {}},
      {"9:memory:/job\n4:cpu,cpuacct:/job/step\n0::/\n",
       {{"cpu/job/cpu.cfs_quota_us", "50000"},
        {"cpu/job/cpu.cfs_period_us", "100000"},
        {"cpu/job/step/cpu.cfs_quota_us", "-1"},
        {"cpu/job/step/cpu.cfs_period_us", "100000"},
        {"memory/memory.limit_in_bytes", "9223372036854771712"},
        {"memory/job/memory.limit_in_bytes", "4096"}},
       0.5,
       4096},
      {"", {}, {}, {}},
  };
  std::string root = (std::filesystem::temp_directory_path() / "phalanx-cores-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  for (const Case& given : cases) {
    SCOPED_TRACE(given.group);
    std::filesystem::remove_all(root);
    std::filesystem::create_directories(root + "/proc/self");
    std::ofstream(root + "/proc/self/cgroup") << given.group;
    for (const auto& [name, content] : given.files) {
      const std::filesystem::path path = root + "/sys/fs/cgroup/" + name;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << content << "\n";
    }
    EXPECT_EQ(cpu_quota(root), given.cores);
    EXPECT_EQ(memory_limit(root), given.bytes);
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace phalanx
