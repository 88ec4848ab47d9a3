#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/process.h"

namespace phalanx::testing {
namespace {

struct Diagnosis {
  Finished run;
  nlohmann::json report;
  std::string problems;
};

// `doctor --json` after a piece of shell.
Diagnosis diagnose(const std::string& before) {
  Diagnosis found;
  found.run = run_program({"sh", "-c", before + " exec " PHALANX_BINARY " doctor --json"});
  found.report = nlohmann::json::parse(found.run.out, nullptr, false);
  if (found.report.is_object()) found.problems = found.report["problems"].dump();
  return found;
}

TEST(Doctor, SaysWhatIsThere) {
  const auto found = diagnose("OMP_NUM_THREADS=1");
  ASSERT_TRUE(found.report.is_object()) << found.run.out << found.run.error;
  EXPECT_EQ(found.run.code, 0) << found.problems;
  const auto& report = found.report;
  EXPECT_EQ(report["versions"]["phalanx"], PHALANX_VERSION);
  EXPECT_TRUE(report["versions"]["libtorch"].get<std::string>().starts_with("2."));
  EXPECT_NE(report["versions"]["blas"], "");
  EXPECT_EQ(report["machine"]["threads"], 1);
  EXPECT_GT(report["machine"]["memory_bytes"], int64_t{1} << 28);
  EXPECT_TRUE(report["transports"]["shared_memory"].get<bool>());
  EXPECT_TRUE(report["transports"]["gloo"].get<bool>());
  EXPECT_GT(report["speed"]["gemm_fp32_gflops"], 0.5);
  EXPECT_GT(report["speed"]["copy_gb_per_s"], 0.1);
  const auto table = run_phalanx({"doctor"});
  for (const std::string row : {"versions\n", "  cpu capability  ", "  open files  "})
    EXPECT_NE(table.out.find(row), std::string::npos) << table.out;
}

TEST(Doctor, FindsWhatIsWrongAndSaysHowToMendIt) {
  struct Case {
    std::string before, what, fix;
  };
  for (const auto& [before, what, fix] : std::vector<Case>{
           {"ulimit -n 100;", "only 100 files may be open", "ulimit -n 4096"},
           {"ATEN_CPU_CAPABILITY=default", "without vector instructions", "ATEN_CPU_CAPABILITY"}}) {
    const auto found = diagnose(before);
    EXPECT_EQ(found.run.code, 0) << found.run.error;  // still able to train
    EXPECT_NE(found.problems.find(what), std::string::npos) << found.run.out;
    EXPECT_NE(found.problems.find(fix), std::string::npos) << found.run.out;
  }
  if (run_program({"unshare", "-n", "true"}).code != 0) return;  // may not make namespaces here
  const auto cut_off = run_program({"unshare", "-n", PHALANX_BINARY, "doctor", "--json"});
  EXPECT_EQ(cut_off.code, 3) << cut_off.out;
  EXPECT_NE(cut_off.out.find("ip link set lo up"), std::string::npos) << cut_off.out;
}

}  // namespace
}  // namespace phalanx::testing
