#include "phalanx/data/token_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "phalanx/data/data_set.h"
#include "phalanx/data/tokenize.h"
#include "phalanx/data/tokenizer.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

namespace phalanx {
namespace {

using testing::expect_contains;

namespace fs = std::filesystem;

std::string write_tokens(const std::string& path, const std::vector<int64_t>& ids,
                         int64_t vocab_size = 256) {
  TokenFileWriter writer(path, "byte", vocab_size);
  writer.add_document(ids);
  writer.finish();
  return path;
}

std::vector<int64_t> count_up(int64_t count, int64_t modulo = 1 << 30) {
  std::vector<int64_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = i % modulo;
  return ids;
}

std::string error_of(const std::function<void()>& call, ExitCode code = ExitCode::data) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(TokenFile, KeepsTokensOfEveryWidth) {
  const std::string folder = testing::temporary_folder();
  for (int64_t vocab : {256, 257, 65536, 65537, 1 << 20}) {
    SCOPED_TRACE(vocab);
    const std::string path = folder + "/" + std::to_string(vocab);
    TokenFileWriter writer(path, "byte", vocab);
    const std::vector<int64_t> first = {0, 3, vocab - 1}, second = count_up(1001, vocab);
    writer.add_document(first);
    writer.add_document({});
    writer.add_document(second);
    writer.finish();
    const TokenFile file(path, vocab);
    EXPECT_EQ(file.header().token_bytes, vocab <= 256 ? 1u : vocab <= 65536 ? 2u : 4u);
    EXPECT_EQ(file.count(), 1004);
    EXPECT_EQ(file.header().max_token, static_cast<uint64_t>(vocab - 1));
    EXPECT_EQ(file.tokenizer(), "byte");
    EXPECT_EQ(file.document_starts(), (std::vector<int64_t>{0, 3, 3}));
    EXPECT_EQ(file.check(), "");
    std::vector<int64_t> read(1004);
    file.read(0, 1004, read.data());
    EXPECT_TRUE(std::equal(first.begin(), first.end(), read.begin()));
    EXPECT_TRUE(std::equal(second.begin(), second.end(), read.begin() + 3));
  }
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().extension(), "") << "left behind: " << entry.path();
}

TEST(TokenFile, RefusesWhatIsNoWholeTokenFile) {
  const std::string folder = testing::temporary_folder();
  const std::string good = write_tokens(folder + "/good", count_up(1000, 200));
  const auto refused = [&](const std::string& path, const std::vector<std::string>& fragments) {
    SCOPED_TRACE(path);
    expect_contains(error_of([&] { TokenFile file(path, 256); }), fragments);
  };
  refused(folder + "/none", {"none", "No such file"});
  refused(folder, {"Is a directory"});
  std::ofstream(folder + "/empty");
  refused(folder + "/empty", {"empty", "phalanx data tokenize"});
  std::ofstream(folder + "/text") << "some text of more than eight bytes";
  refused(folder + "/text", {"text", "no token file", "phalanx data tokenize"});
  const int64_t size = static_cast<int64_t>(fs::file_size(good));
  for (int64_t cut : {size - 1, size / 2, int64_t{128}, int64_t{100}}) {
    fs::copy_file(good, folder + "/cut", fs::copy_options::overwrite_existing);
    fs::resize_file(folder + "/cut", cut);
    refused(folder + "/cut", {"cut", std::to_string(cut) + " bytes"});
  }
  fs::copy_file(good, folder + "/flipped");
  std::fstream(folder + "/flipped", std::ios::in | std::ios::out).seekp(17).put('\x7f');
  refused(folder + "/flipped", {"damaged header"});
}

TEST(TokenFile, NamesIdsOutsideOfTheVocabulary) {
  const std::string folder = testing::temporary_folder();
  const std::string path = write_tokens(folder + "/ids", {1, 2, 300, 4}, 1000);
  expect_contains(error_of([&] { TokenFile file(path, 300); }),
                  {"ids up to 300", "vocabulary has 300", "301"});
  EXPECT_EQ(TokenFile(path, 301).count(), 4);
  // A header that lies (the file was changed after it was written): found when it is read.
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(128 + 2)
      .write("\xe8\x03", 2);  // 1000
  const TokenFile file(path, 301);
  int64_t ids[4];
  expect_contains(error_of([&] { file.read(0, 4, ids); }),
                  {"ids", "token id 1000", "position 1", "vocabulary of 301"});
  file.read(2, 2, ids);  // the rest is readable
  EXPECT_NE(file.check(), "");
  expect_contains(error_of([&] { write_tokens(folder + "/bad", {0, 256}); }),
                  {"token id 256", "position 1", "vocabulary of 256"});
  EXPECT_FALSE(fs::exists(folder + "/bad") || fs::exists(folder + "/bad.tmp"));
}

TEST(TokenFile, WritesEndOfDocumentOncePerDocument) {
  const std::string path = testing::temporary_folder() + "/documents";
  const auto tokenizer = byte_tokenizer();
  TokenFileWriter writer(path, "byte", 256, tokenizer->end_of_document());
  for (const char* document : {"one", "", "three"})
    writer.add_document(tokenizer->encode(document));
  expect_contains(error_of([&] { writer.add_document(tokenizer->encode("a\xff")); }),
                  {"document 3", "end-of-document id 255", "position 1"});
  writer.finish();
  const TokenFile file(path);
  std::vector<int64_t> ids(file.count());
  file.read(0, file.count(), ids.data());
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 255), 3);
  EXPECT_EQ(tokenizer->decode(ids), "onethree");
  expect_contains(error_of([&] { tokenizer->decode(std::vector<int64_t>{256}); }), {"256"});
  expect_contains(error_of([&] { make_tokenizer("bpe"); }, ExitCode::usage), {"'bpe'", "byte"});
  expect_contains(error_of([&] { TokenFileWriter(path + "2", "byte", 256).finish(); }),
                  {"0 documents"});
}

TEST(TokenFile, ADocumentInPartsIsTheDocumentAtOnce) {
  const std::string folder = testing::temporary_folder();
  const std::vector<int64_t> ids = count_up(700, 255);
  const auto write = [&](const std::string& name, std::vector<size_t> cuts) {
    TokenFileWriter writer(folder + name, "byte", 256, 255);
    writer.add_document(ids);
    size_t begin = 0;
    for (size_t end : cuts) {
      writer.add(std::span(ids).subspan(begin, end - begin));
      begin = end;
    }
    expect_contains(error_of([&] { writer.add(std::vector<int64_t>{1, 255}); }),
                    {"document 1", "end-of-document id 255", "position 701"});
    writer.end_document();
    writer.add_document({});
    writer.finish();
    return read_file(folder + name, ExitCode::data);
  };
  const std::string whole = write("/whole", {700});
  EXPECT_TRUE(write("/parts", {1, 1, 300, 700}) == whole);
  EXPECT_EQ(TokenFile(folder + "/whole").document_starts(), (std::vector<int64_t>{0, 701, 1402}));
}

// A file of more than one part (1 MB) is read in parts, and is one document.
TEST(Tokenize, AFileOfSeveralPartsIsOneDocument) {
  const std::string folder = testing::temporary_folder();
  std::string contents((5 << 19) + 3, 'x');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i % 251);
  std::ofstream(folder + "/a") << contents;
  std::ofstream(folder + "/b") << "end";
  std::ofstream(folder + "/empty");
  const auto report = tokenize_files({folder + "/a", folder + "/empty", folder + "/b"},
                                     folder + "/tokens", *byte_tokenizer(), true);
  EXPECT_EQ(report.empty_files, 1);
  const TokenFile file(folder + "/tokens");
  const auto length = static_cast<int64_t>(contents.size());
  EXPECT_EQ(file.document_starts(), (std::vector<int64_t>{0, length + 1}));
  std::vector<int64_t> ids(file.count());
  file.read(0, file.count(), ids.data());
  EXPECT_TRUE(byte_tokenizer()->decode(ids) == contents + "end");
  EXPECT_EQ(file.check(), "");
  contents[2 << 20] = '\xff';  // in the third part
  std::ofstream(folder + "/a") << contents;
  expect_contains(
      error_of([&] { tokenize_files({folder + "/a"}, folder + "/bad", *byte_tokenizer(), true); }),
      {folder + "/a: document 0", "end-of-document id 255", "position 2097152"});
}

TEST(Tokenize, TakesNeitherItsOutputNorWhatItIsFirstWrittenTo) {
  const std::string folder = testing::temporary_folder();
  std::ofstream(folder + "/text") << "some text";
  for (const std::string name : {"/out", "/out.tmp"}) {
    SCOPED_TRACE(name);
    std::ofstream(folder + name) << "mine";
    expect_contains(error_of([&] {
                      tokenize_files(find_documents({folder}, {}), folder + "/out",
                                     *byte_tokenizer(), false);
                    }),
                    {"the output " + folder + "/out", "is also an input, " + folder + name});
    EXPECT_EQ(read_file(folder + name, ExitCode::data), "mine");
    fs::remove(folder + name);
  }
}

TEST(Tokenize, TakesNoFileTwice) {
  const std::string folder = testing::temporary_folder();
  std::ofstream(folder + "/a") << "text";
  EXPECT_EQ(find_documents({folder}, {}), (std::vector<std::string>{folder + "/a"}));
  for (const auto& inputs : std::vector<std::vector<std::string>>{
           {folder, folder + "/a"}, {folder + "/a", folder + "/./a"}, {folder, folder + "/"}}) {
    SCOPED_TRACE(inputs[1]);
    expect_contains(error_of([&] { find_documents(inputs, {}); }, ExitCode::usage),
                    {"named twice", "by " + inputs[1], "name it once"});
  }
}

TEST(Tokenize, AFolderWithoutPermissionIsNamed) {
  const std::string folder = testing::temporary_folder();
  fs::create_directories(folder + "/inner/closed");
  chmod((folder + "/inner/closed").c_str(), 0);
  chmod(folder.c_str(), 0755);
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (geteuid() == 0) EXPECT_EQ(seteuid(65534), 0);  // nothing is refused to root
    for (const std::string input : {"", "/inner/closed"})
      expect_contains(error_of([&] { find_documents({folder + input}, {}); }),
                      {"cannot read the folder " + folder + "/inner/closed", "Permission denied"});
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
  chmod((folder + "/inner/closed").c_str(), 0700);
}

TEST(TokenFile, KeepsNoDescriptors) {
  const std::string folder = testing::temporary_folder();
  std::vector<std::string> paths;
  for (int i = 0; i < 100; ++i)
    paths.push_back(write_tokens(folder + "/" + std::to_string(i), count_up(10)));
  rlimit before{}, low{};
  getrlimit(RLIMIT_NOFILE, &before);
  const auto descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto open_now = descriptors();
  low = before;
  low.rlim_cur = open_now + 8;
  setrlimit(RLIMIT_NOFILE, &low);
  const auto data = open_token_files(paths, 16, 256);
  EXPECT_EQ(descriptors(), open_now);
  low.rlim_cur = 3;
  setrlimit(RLIMIT_NOFILE, &low);
  const std::string sentence = error_of([&] { TokenFile file(paths[0]); });
  setrlimit(RLIMIT_NOFILE, &before);
  expect_contains(sentence, {"too many open files", "limit 3", "ulimit -n"});
}

TEST(TokenFile, DiskErrorsAreOneSentence) {
  const std::string folder = testing::temporary_folder();
  std::ofstream(folder + "/file");
  expect_contains(error_of([&] { write_tokens(folder + "/file/tokens", {1}); }),
                  {"cannot create", "file/tokens.tmp", "Not a directory"});
  for (const std::string failing : {"write", "sync", "rename"}) {
    SCOPED_TRACE(failing);
    set_disk_hook([&](std::string_view operation, const std::string&) {
      if (operation == failing) fail(ExitCode::data, "injected");
    });
    expect_contains(error_of([&] { write_tokens(folder + "/tokens", {1}); }), {"injected"});
    set_disk_hook(nullptr);
    EXPECT_FALSE(fs::exists(folder + "/tokens") || fs::exists(folder + "/tokens.tmp"));
  }
}

}  // namespace
}  // namespace phalanx
