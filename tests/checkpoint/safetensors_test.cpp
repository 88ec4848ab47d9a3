#include "phalanx/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "phalanx/base/text.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ThreadRanks;

void write(const std::string& path, const std::string& header, uint64_t length, int64_t data) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header << std::string(static_cast<size_t>(data), 'x');
}

TEST(Safetensors, HeadersThatLieAreRefused) {
  const std::string path = testing::temporary_folder() + "/lies.safetensors";
  const auto tensor = [](const std::string& name, const std::string& shape,
                         const std::string& offsets, const std::string& dtype = "F32") {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  const auto refused = [&](const std::string& header, const std::string& fragment,
                           uint64_t length = 0) {
    write(path, header, length ? length : header.size(), 32);
    try {
      read_safetensors_header(InputFile(path, ExitCode::checkpoint));
      ADD_FAILURE() << "accepted: " << header;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint);
      for (const auto& wanted : {path, fragment})
        EXPECT_NE(std::string(error.what()).find(wanted), std::string::npos) << error.what();
    }
  };
  const std::string a = tensor("a", "[2,2]", "[0,16]"), b = tensor("b", "[4]", "[16,32]");
  const std::string good = "{" + a + "," + b + "}";
  write(path, good, good.size(), 32);
  EXPECT_EQ(read_safetensors_header(InputFile(path, ExitCode::checkpoint)).size(), 2u);
  // Not a lie, only more than is read.
  const std::string small = "{" + tensor("small", "[32]", "[0,32]", "F8_E4M3") + "}";
  write(path, small, small.size(), 32);
  try {
    read_safetensors_header(InputFile(path, ExitCode::checkpoint));
    ADD_FAILURE() << "a type without a name of ours";
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("tensor small holds elements of type F8_E4M3; F64, F32, BF16"),
              std::string::npos)
        << said;
    EXPECT_EQ(said.find("damaged"), std::string::npos) << said;
  }
  refused(good, "claims", uint64_t{1} << 63);
  refused(good, "claims", ~uint64_t{0});
  refused(good, "claims", 100'000'001);
  refused(good, "claims", good.size() + 33);
  refused(good.substr(1), "damaged");
  refused("{" + a + "," + tensor("b", "[4]", "[32,16]") + "}", "tensor b");  // reversed
  refused("{" + a + "," + tensor("b", "[4]", "[24,40]") + "}", "tensor b");  // past the end
  refused("{" + a + "," + tensor("b", "[4]", "[8,24]") + "}", "b begins");   // overlap
  refused("{" + tensor("a", "[2]", "[0,8]") + "," + b + "}", "b begins");    // gap
  refused("{" + a + "}", "end at");                                          // rest unused
  refused("{" + a + "," + tensor("b", "[5]", "[16,32]") + "}", "tensor b");  // shape
  refused("{" + a + "," + tensor("b", "[-4]", "[16,32]") + "}", "tensor b");
  refused("{" + a + "," + tensor("b", "[4611686018427387904,4]", "[16,16]") + "}", "tensor b");
  refused("{" + a + "," + tensor("b", "[4]", "[16,32]", "C64") + "}", "C64");
  refused("{" + a + "," + tensor("b", "[4]", "[16]") + "}", "tensor b");
  refused("{\"a\":3}", "damaged");
  write(path, "", 0, -0);
  std::filesystem::resize_file(path, 5);
  EXPECT_THROW(read_safetensors_header(InputFile(path, ExitCode::checkpoint)), Error);
}

// The Python package reads what every rank wrote, and finds the values at the boxes that the names
// and the manifest give.
TEST(Safetensors, ThePythonPackageReadsOurFiles) {
  const std::string folder = testing::temporary_folder();
  const std::vector<testing::Role> roles = {
      {"parameter", at::kFloat, true}, {"exp_avg", at::kDouble, true}, {"half", at::kHalf, true},
      {"bytes", at::kByte, false},     {"mask", at::kBool, true},      {"step", at::kLong, false}};
  const auto specs = testing::small_model();
  const auto errors = ThreadRanks::run(3, [&](Communicator& world) {
    const auto state = testing::flat_state(specs, roles, world.rank(), 3, true);
    save_checkpoint(world, folder, {.step = 3}, state, 0);
  });
  ASSERT_EQ(errors[0], "");
  std::ofstream(folder + "/read.py") << R"(
import glob, json, sys
import numpy
from safetensors import safe_open
from safetensors.numpy import load_file
folder = sys.argv[1]
manifest = json.load(open(folder + "/manifest.json"))
stored = {}
for path in sorted(glob.glob(folder + "/*.safetensors")):
    stored[path.split("/")[-1]] = load_file(path)
    with safe_open(path, "numpy") as file:
        assert file.metadata()["phalanx_step"] == "3", file.metadata()
assert sorted(stored) == sorted(manifest["files"]), stored.keys()
count = 0
for tensor in manifest["tensors"]:
    whole = numpy.full(tensor["shape"], 255, dtype=tensor["dtype"])
    for part in tensor["parts"]:
        box = tuple(slice(o, o + s) for o, s in zip(part["offset"], part["size"]))
        name = tensor["name"] + ("" if tensor["role"] == "parameter" else ":" + tensor["role"])
        if part["size"] != tensor["shape"]:
            name += "[" + ",".join(f"{s.start}:{s.stop}" for s in box) + "]"
        value = stored[part["file"]].pop(name)
        assert list(value.shape) == part["size"] and value.dtype == whole.dtype, name
        raw = open(folder + "/" + part["file"], "rb").read()
        assert raw[part["file_offset"]:part["file_offset"] + part["bytes"]] == value.tobytes(), name
        whole[box] = value
    flat = whole.astype("int64").reshape(-1)
    values = 2 if tensor["dtype"] == "bool" else 251
    if len(flat):
        assert (flat == (flat[0] + numpy.arange(len(flat))) % values).all(), tensor["name"]
    count += 1
assert not any(stored.values()), stored
print(count)
)";
  const std::string command = text("'", PHALANX_SOURCE_DIR, "/.venv/bin/python' '", folder,
                                   "/read.py' '", folder, "/step-3' > '", folder, "/out' 2>&1");
  const int status = std::system(command.c_str());
  const std::string output = read_file(folder + "/out", ExitCode::checkpoint);
  EXPECT_EQ(status, 0) << output;
  EXPECT_EQ(output, "66\n");
}

}  // namespace
}  // namespace phalanx
