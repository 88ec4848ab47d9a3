#include "phalanx/base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace phalanx {
namespace {

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> words{"train", "run", "eval", "verify", "generate", "data"};
  EXPECT_EQ(nearest("tran", words), "train");
  EXPECT_EQ(nearest("rnu", words), "run");
  EXPECT_EQ(nearest("genrate", words), "generate");
  EXPECT_EQ(nearest("date", words), "data");
  EXPECT_EQ(nearest("train", words), "train");
  EXPECT_EQ(nearest("gen", words), "generate");
}

TEST(Nearest, IsEmptyWhereNothingIsNear) {
  const std::vector<std::string> words{"train", "run"};
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("zz", words), "");
  EXPECT_EQ(nearest("checkpoint", words), "");
  EXPECT_EQ(did_you_mean("checkpoint", words), "");
  EXPECT_EQ(did_you_mean("trian", words), "; did you mean 'train'?");
}

}  // namespace
}  // namespace phalanx
