#include "phalanx/data/tokenize.h"

#include <algorithm>
#include <filesystem>

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
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->is_regular_file(unknown) && has_extension(entry->path().string(), extensions))
      found.push_back(entry->path().string());
  require(!error, ExitCode::data, "cannot read the folder ", folder, ": ", error.message());
  require(!found.empty(), ExitCode::data, "the folder ", folder, " has no file",
          extensions.empty() ? "" : " that ends in ", join(extensions, " or "));
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<std::string> find_documents(const std::vector<std::string>& inputs,
                                        const std::vector<std::string>& extensions) {
  std::vector<std::string> documents;
  for (const auto& input : inputs) {
    const PathKind kind = kind_of_path(input, ExitCode::data);
    require(kind != PathKind::nothing, ExitCode::data, "there is no file or folder ", input);
    if (kind != PathKind::folder) {
      documents.push_back(input);
      continue;
    }
    const auto found = files_in(input, extensions);
    documents.insert(documents.end(), found.begin(), found.end());
  }
  return documents;
}

TokenizeReport tokenize_files(const std::vector<std::string>& documents, const std::string& output,
                              const Tokenizer& tokenizer, bool append_end_of_document) {
  require(!append_end_of_document || tokenizer.end_of_document(), ExitCode::usage, "the tokenizer ",
          tokenizer.name(), " has no end-of-document id");
  TokenFileWriter writer(output, tokenizer.name(), tokenizer.vocab_size(),
                         append_end_of_document ? tokenizer.end_of_document() : std::nullopt);
  TokenizeReport report{};
  for (const auto& path : documents) {
    std::error_code ignored;
    require(!fs::equivalent(path, output, ignored), ExitCode::data, "the output ", output,
            " is also an input; write it somewhere else");
    const std::string contents = read_file(path, ExitCode::data);
    report.bytes_read += static_cast<int64_t>(contents.size());
    if (contents.empty()) {
      ++report.empty_files;
      continue;
    }
    try {
      writer.add_document(tokenizer.encode(contents));
    } catch (const Error& error) {
      fail(error.code(), path, ": ", error.what());
    }
  }
  report.header = writer.finish();
  return report;
}

}  // namespace phalanx
