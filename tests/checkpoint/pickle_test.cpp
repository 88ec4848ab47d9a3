// The reader of pickles: what Python writes is read, nothing is run, nothing grows without bound.
#include "phalanx/checkpoint/pickle.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using Ref = Pickle::Ref;
using Kind = Pickle::Kind;

// A value as text, in Python's notation as far as that goes.
std::string shown(const Pickle& pickle, Ref ref, int depth = 0) {
  if (depth > 8) return "...";
  const auto several = [&](const std::vector<Ref>& items) {
    std::vector<std::string> texts;
    for (const Ref item : items) texts.push_back(shown(pickle, item, depth + 1));
    return join(texts);
  };
  const auto paired = [&] {
    std::vector<std::string> texts;
    for (const auto& [key, value] : pickle.pairs(ref, "a dict"))
      texts.push_back(shown(pickle, key, depth + 1) + ": " + shown(pickle, value, depth + 1));
    return "{" + join(texts) + "}";
  };
  switch (pickle.kind(ref)) {
    case Kind::boolean:
      return pickle.integer(ref, "") != 0 ? "True" : "False";
    case Kind::integer:
      return std::to_string(pickle.integer(ref, ""));
    case Kind::text:
      return "'" + pickle.text(ref, "") + "'";
    case Kind::tuple:
      return "(" + several(pickle.tuple(ref, "")) + ")";
    case Kind::list:
      return "[" + several(pickle.list(ref, "")) + "]";
    case Kind::dict:
      return paired();
    case Kind::global:
      return std::string(pickle.global(ref));
    case Kind::object: {
      const Ref state = pickle.state(ref);
      return std::string(pickle.made_by(ref)) + shown(pickle, pickle.arguments(ref), depth + 1) +
             (state == 0 ? "" : "<" + shown(pickle, state, depth + 1) + ">") +
             (pickle.pairs(ref, "").empty() ? "" : paired());
    }
    case Kind::persistent:
      return "#" + shown(pickle, pickle.persistent_id(ref), depth + 1);
    default:
      return pickle.describe(ref);
  }
}

std::string shown(std::string_view bytes) {
  const Pickle pickle(bytes, "x");
  return shown(pickle, pickle.root());
}

std::string error_of(std::string_view bytes) {
  try {
    shown(bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint);
    return error.what();
  }
}

void expect_refused(std::string_view bytes, const std::string& fragment) {
  EXPECT_NE(error_of(bytes).find(fragment), std::string::npos) << error_of(bytes);
}

std::string pickled(std::string body) { return "\x80\x02" + std::move(body) + "."; }

std::string little_endian(uint64_t value, int bytes) {
  return std::string(reinterpret_cast<const char*>(&value), bytes);
}

constexpr const char* script = R"py(
import collections, os, pathlib, pickle, sys
folder = sys.argv[1]

class Thing:
    def __init__(self): self.a = 1
class Runs:
    def __init__(self, function, *arguments): self.made = (function, arguments)
    def __reduce__(self): return self.made
    def __call__(self): pass

shared = [1, 2]
value = {"none": None, "flags": (True, False), "ints": [0, -1, 255, 65535, 70000, -(1 << 40), (1 << 63) - 1],
         "big": 1 << 70, "real": 1.5, "text": "caf\u00e9", "long": "x" * 300, "bytes": b"ab", "empty": [(), [], {}],
         "four": (1, 2, 3, 4), "set": {7}, "shared": [shared, shared], "thing": Thing(),
         "ordered": collections.OrderedDict(k=1)}
for protocol in (2, 3, 4, 5):
    with open(f"{folder}/good{protocol}", "wb") as out: pickle.dump(value, out, protocol)
marker = folder + "/marker"
evil = {"system": Runs(os.system, "touch " + marker), "eval": Runs(eval, f"open({marker!r}, 'w')"),
        "popen": [Runs(os.popen, "touch " + marker)], "exec": {"k": (Runs(exec, f"open({marker!r}, 'w')"),)},
        "getattr": Runs(Runs(getattr, Runs(__import__, "os"), "system"), "touch " + marker)
}
for name, value in evil.items():
    for protocol in (2, 4):
        with open(f"{folder}/evil-{name}-{protocol}", "wb") as out: pickle.dump(value, out, protocol)
pickle.loads(pickle.dumps(evil["system"]))
assert os.path.exists(marker), "the trap does not work"
os.remove(marker)
)py";

TEST(Pickle, ReadsWhatPythonWritesAndRunsNothing) {
  const std::string folder = testing::temporary_folder();
  OutputFile out(folder + "/make.py", ExitCode::checkpoint);
  out.write(script, static_cast<int64_t>(std::string_view(script).size()));
  out.finish();
  ASSERT_EQ(std::system(text("python3 '", folder, "/make.py' '", folder, "'").c_str()), 0);
  const auto read = [&](const std::string& name) {
    return read_file(folder + "/" + name, ExitCode::checkpoint);
  };
  for (const int protocol : {2, 3, 4, 5}) {
    SCOPED_TRACE(protocol);
    std::string seen = shown(read(text("good", protocol)));
    // Protocol 2 has neither bytes nor sets: they are calls.
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>{"_codecs.encode('ab', 'latin1')", "bytes"},
          {"__builtin__.set([7])", "a set"},
          {"builtins.set([7])", "a set"}})
      if (const size_t at = seen.find(from); at != std::string::npos)
        seen.replace(at, from.size(), to);
    EXPECT_EQ(seen,
              "{'none': None, 'flags': (True, False), 'ints': [0, -1, 255, 65535, 70000, "
              "-1099511627776, 9223372036854775807], 'big': an int, 'real': a float, 'text': "
              "'caf\xc3\xa9', 'long': '" +
                  std::string(300, 'x') +
                  "', 'bytes': bytes, 'empty': [(), [], {}], 'four': (1, 2, 3, 4), 'set': a set, "
                  "'shared': [[1, 2], [1, 2]], 'thing': __main__.Thing()<{'a': 1}>, 'ordered': "
                  "collections.OrderedDict(){'k': 1}}");
  }
  for (const auto& [name, culprit] :
       {std::pair("system", "posix.system"), std::pair("eval", "eval"),
        std::pair("popen", "os.popen"), std::pair("exec", "exec"), std::pair("getattr", "getattr")})
    for (const int protocol : {2, 4}) {
      SCOPED_TRACE(text(name, " ", protocol));
      const Pickle pickle(read(text("evil-", name, "-", protocol)), "the file");
      EXPECT_NO_THROW(pickle.describe(pickle.root()));
      try {
        pickle.check_globals([](std::string_view global) { return global == "torch.Size"; });
        ADD_FAILURE() << "not refused";
      } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_TRUE(said.starts_with("the file contains ")) << said;
        EXPECT_NE(said.find(culprit), std::string::npos) << said;
        EXPECT_NE(said.find("which is not data"), std::string::npos) << said;
      }
    }
  EXPECT_FALSE(std::filesystem::exists(folder + "/marker"));
}

TEST(Pickle, RefusesWhatItCannotReadWithinBounds) {
  EXPECT_EQ(shown(pickled("N")), "None");
  expect_refused("", "it is cut");
  expect_refused("\x80", "it is cut");
  expect_refused("(dp0\n.", "no pickle");
  expect_refused("\x80\x01.", "protocol 1");
  expect_refused(std::string("\x80\x06") + ".", "protocol 6");
  expect_refused("\x80\x02N", "it is cut");
  expect_refused(pickled(""), "there is none");
  for (const char* stack : {"NN", "(N", "N("}) EXPECT_NE(error_of(pickled(stack)), "") << stack;
  expect_refused(pickled("(R"), "takes a value where there is none");
  expect_refused(pickled("NNR(R"), "there is none");
  expect_refused(pickled("N(b"), "there is none");
  expect_refused(pickled("NNb"), "gives a state to None");
  expect_refused(pickled("NNNs"), "puts items into None");
  expect_refused(pickled("}(Nu"), "a key without a value");
  expect_refused(pickled("(Nd"), "a key without a value");
  expect_refused(pickled("h\x07"), "recalls value 7");
  expect_refused(pickled("t"), "a mark is missing");
  expect_refused(pickled("cos\nsystem"), "a name without end");
  expect_refused(pickled("NN\x93"), "None where the name of a module");
  // Instructions that data needs not: text integers, instances by name, extensions, buffers.
  for (const char instruction : {'I', 'L', 'F', 'S', 'V', 'P', 'p', 'g', 'i', 'o', '\x82', '\x97'})
    expect_refused(pickled(std::string(1, instruction) + "1\n"), "none of those that data needs");

  // Lengths that lie.
  for (const char instruction : {'X', 'B', 'T', '\x8b'}) {
    expect_refused(pickled(instruction + little_endian(100 << 20, 4)),
                   "104857600 bytes are needed");
    expect_refused(pickled(instruction + little_endian(0xffffffff, 4)), "it is cut");
  }
  for (const char instruction : {'\x8d', '\x8e', '\x96', '\x95'})
    for (const uint64_t length : {uint64_t{100} << 20, uint64_t{1} << 63, ~uint64_t{0}})
      expect_refused(pickled(instruction + little_endian(length, 8)), "it is cut");
  expect_refused(pickled("c" + std::string(500, 'a') + "\nb\n"), "a name without end");
  expect_refused(pickled("X" + little_endian(500, 4) + std::string(500, 'a') + "2\x93"),
                 "a name of 1000 characters");
  EXPECT_EQ(
      shown(pickled("Nr" + little_endian(0xffffffff, 4) + "0j" + little_endian(0xffffffff, 4))),
      "None")
      << "a memo is no array";

  // Lists of lists of lists, each ten times the one before: 10^60 values in 1 KB, few nodes.
  std::string bomb = "]q" + std::string(1, '\0');
  for (char level = 1; level < 60; ++level) {
    bomb += "](";
    for (int i = 0; i < 10; ++i) bomb += std::string("h") + static_cast<char>(level - 1);
    bomb += std::string("eq") + level;
  }
  const Pickle bombed(pickled("(" + bomb + "t"), "bomb");
  const std::function<void(Ref)> follow = [&](Ref ref) {
    for (const Ref item : bombed.list(ref, "a list")) follow(item);
  };
  try {
    follow(bombed.tuple(bombed.root(), "all").back());
    ADD_FAILURE() << "followed to its end";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("again and again"), std::string::npos);
  }
  EXPECT_NO_THROW(Pickle(pickled("]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a"),
                         "a list in itself"));
  std::string many = "](";
  for (int i = 0; i < 10'001; ++i) many += text("cm\nn", i, "\n");
  expect_refused(pickled(many + "e"), "different names");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += ")";
  for (int i = 1; i < 100'000; ++i) deep += "\x86";
  EXPECT_NO_THROW(Pickle(pickled(deep), "deep"));
}

TEST(Pickle, SurvivesEveryCutAndFlip) {
  PickleWriter writer;
  writer.global("collections", "OrderedDict");
  writer.empty_tuple();
  writer.call();
  writer.mark();
  writer.text("key"), writer.integers({1, 300, -5, int64_t{1} << 40});
  writer.text("key2"), writer.boolean(true);
  writer.set_items();
  writer.empty_dict();
  writer.mark();
  writer.text("_metadata"), writer.none();
  writer.set_items();
  writer.build();
  std::string good = writer.finish();
  EXPECT_EQ(shown(good),
            "collections.OrderedDict()<{'_metadata': None}>{'key': (1, 300, -5, "
            "1099511627776), 'key2': True}");
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_NE(error_of(good.substr(0, length)), "") << length;
  std::mt19937 random(1);
  const auto survives = [](const std::string& bytes) {
    try {
      const Pickle pickle(bytes, "x");
      shown(pickle, pickle.root());
      pickle.check_globals([](std::string_view) { return true; });
    } catch (const Error&) {
    }
  };
  for (size_t at = 0; at < good.size(); ++at)
    for (int value = 0; value < 256; ++value) {
      std::string bad = good;
      bad[at] = static_cast<char>(value);
      survives(bad);
    }
  for (int i = 0; i < 20'000; ++i) {  // instructions at random
    std::string bytes = "\x80\x04";
    for (int length = random() % 60; length > 0; --length)
      bytes += static_cast<char>(
          random() % 3 == 0 ? random() : "N(ht)]}lduesabRQ0q2\x81\x85\x86\x94\x93K"[random() % 25]);
    survives(bytes + ".");
  }
}

}  // namespace
}  // namespace phalanx
