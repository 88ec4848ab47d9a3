#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/data/token_file.h"
#include "phalanx/data/tokenizer.h"

namespace phalanx {

/// The files among `inputs`, and those in its folders and their subfolders, by path. Files in
/// folders count if their names end in one of `extensions` (all do if there are none). Error(data)
/// for an input that does not exist and for a folder that gives no file, Error(usage) for a file
/// that two inputs name.
std::vector<std::string> find_documents(const std::vector<std::string>& inputs,
                                        const std::vector<std::string>& extensions);

struct TokenizeReport {
  TokenFileHeader header;
  int64_t empty_files = 0;  ///< passed over
};

/// Writes one token file of all documents, one document per file. Error(data) if the output, or
/// what it is written to before it is whole (output + ".tmp"), is one of them.
TokenizeReport tokenize_files(const std::vector<std::string>& documents, const std::string& output,
                              const Tokenizer& tokenizer, bool append_end_of_document);

}  // namespace phalanx
