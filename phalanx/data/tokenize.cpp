#include "phalanx/data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

bool has_extension(const std::string& path, const std::vector<std::string>& extensions) {
  return extensions.empty() ||
         std::any_of(extensions.begin(), extensions.end(),
                     [&](const std::string& extension) { return path.ends_with(extension); });
}

std::vector<std::string> files_in(const std::string& folder,
                                  const std::vector<std::string>& extensions) {
  std::vector<std::string> found;
  std::error_code error, unknown;
  fs::path reached = folder;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    reached = entry->path();
    if (entry->is_regular_file(unknown) && has_extension(reached.string(), extensions))
      found.push_back(reached.string());
  }
  if (error && !fs::is_directory(reached, unknown)) reached = reached.parent_path();
  require(!error, ExitCode::data, "cannot read the folder ", reached.string(), ": ",
          error.message());
  require(!found.empty(), ExitCode::data, "the folder ", folder, " has no file",
          extensions.empty() ? "" : " that ends in ", join(extensions, " or "));
  std::sort(found.begin(), found.end());
  return found;
}

void refuse_inputs_written_to(const std::vector<std::string>& documents,
                              const std::string& output) {
  std::error_code ignored;
  for (const std::string& written : {output, output + ".tmp"})
    for (const auto& path : documents)
      require(!fs::equivalent(path, written, ignored), ExitCode::data, "the output ", output,
              written == output ? "" : ", first written to " + written + ",", " is also an input, ",
              path, "; write it somewhere else");
}

// Read, encoded and written in parts, so that a file may be larger than memory.
void add_file(const InputFile& file, const Tokenizer& tokenizer, TokenFileWriter& writer) {
  constexpr int64_t part_bytes = 1 << 20;
  std::string part;
  for (int64_t begin = 0; begin < file.size(); begin += part_bytes) {
    part.resize(std::min(part_bytes, file.size() - begin));
    file.read(part.data(), static_cast<int64_t>(part.size()), begin);
    try {
      writer.add(tokenizer.encode(part));
    } catch (const Error& error) {
      fail(error.code(), file.path(), ": ", error.what());
    }
  }
  writer.end_document();
}

}  // namespace

std::vector<std::string> find_documents(const std::vector<std::string>& inputs,
                                        const std::vector<std::string>& extensions) {
  std::vector<std::string> documents;
  std::set<fs::path> known;
  for (const auto& input : inputs) {
    const PathKind kind = kind_of_path(input, ExitCode::data);
    require(kind != PathKind::nothing, ExitCode::data, "there is no file or folder ", input);
    const bool folder = kind == PathKind::folder;
    for (const auto& path : folder ? files_in(input, extensions) : std::vector{input}) {
      require(known.insert(fs::absolute(path).lexically_normal()).second, ExitCode::usage, path,
              " is named twice, the second time by ", input, "; name it once");
      documents.push_back(path);
    }
  }
  return documents;
}

TokenizeReport tokenize_files(const std::vector<std::string>& documents, const std::string& output,
                              const Tokenizer& tokenizer, bool append_end_of_document) {
  require(!append_end_of_document || tokenizer.end_of_document(), ExitCode::usage, "the tokenizer ",
          tokenizer.name(), " has no end-of-document id");
  refuse_inputs_written_to(documents, output);
  TokenFileWriter writer(output, tokenizer.name(), tokenizer.vocab_size(),
                         append_end_of_document ? tokenizer.end_of_document() : std::nullopt);
  TokenizeReport report{};
  for (const auto& path : documents) {
    const InputFile file(path, ExitCode::data);
    if (file.size() > 0)
      add_file(file, tokenizer, writer);
    else
      ++report.empty_files;
  }
  report.header = writer.finish();
  return report;
}

}  // namespace phalanx
