// How ranks share the work of comparing hashes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/verify.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

// Zeros in the place of all data: then each share names what it has read.
void damage_all(const std::string& folder, const Manifest& manifest) {
  for (const auto& entry : manifest.entries)
    for (const auto& part : entry.parts) {
      std::fstream file(folder + "/" + part.file, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(part.offset);
      file << std::string(static_cast<size_t>(part.bytes), '\0');
    }
}

// A bias follows every weight: a share by number would have all the weights.
TEST(Verify, SharesAreEqualInBytes) {
  const std::string folder = testing::temporary_folder();
  std::vector<StateEntry> state;
  for (int layer = 0; layer < 12; ++layer)
    for (const auto& [name, size] : {std::pair{"bias", 16}, std::pair{"weight", 4096}})
      state.push_back(whole_entry(text("h.", layer, ".", name), "parameter", at::ones({size})));
  const auto alone = single_communicator("alone");
  const std::string path = save_checkpoint(*alone, folder, {.step = 1}, state, 0);
  const Manifest manifest = read_manifest(path);
  damage_all(path, manifest);
  for (int shares : {1, 2, 4, 5}) {
    SCOPED_TRACE(text(shares, " shares"));
    std::vector<int64_t> bytes;
    size_t found = 0;
    for (int share = 0; share < shares; ++share) {
      const auto defects = content_defects(*open_storage(path), "", manifest, share, shares);
      bytes.push_back(0);
      for (const auto& entry : manifest.entries)
        for (const auto& defect : defects)
          if (defect.find("is damaged: " + entry.name + " (") != std::string::npos)
            bytes.back() += entry.parts.at(0).bytes, ++found;
    }
    EXPECT_EQ(found, manifest.entries.size()) << "each is read by one";
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    EXPECT_LE(*most - *least, 4096 * 4);
  }
}

// A file is opened by those who read in it, and by the one who compares the headers.
TEST(Verify, AShareOpensOnlyWhatItReads) {
  const std::string folder = testing::temporary_folder();
  const auto alone = single_communicator("alone");
  const std::string path = save_checkpoint(
      *alone, folder, {.step = 1}, std::vector{whole_entry("x", "parameter", at::ones({3}))}, 0);
  const Manifest manifest = read_manifest(path);
  std::filesystem::remove(path + "/" + manifest.files.begin()->first);
  EXPECT_EQ(content_defects(*open_storage(path), "", manifest, 0, 2).size(), 1u);
  EXPECT_EQ(content_defects(*open_storage(path), "", manifest, 1, 2).size(), 0u);
}

}  // namespace
}  // namespace phalanx
