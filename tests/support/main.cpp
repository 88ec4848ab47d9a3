#include <ATen/Parallel.h>
#include <gtest/gtest.h>

// Ranks are forked from this process, so it must stay single-threaded.
int main(int argc, char** argv) {
  at::set_num_threads(1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
