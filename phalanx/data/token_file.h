#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "phalanx/base/files.h"

namespace phalanx {

/// Token file, version 1. All numbers little-endian.
///
///   bytes 0-127   header: TokenFileHeader, field after field
///   then          token_count tokens of token_bytes each
///   then          zeros up to a multiple of 8
///   then          document_count x uint64: where each document starts, in tokens
///
/// The file's size follows from the header, so a cut file is noticed when it is opened.
struct TokenFileHeader {
  char magic[8];         ///< "PHXTOKEN"
  uint32_t version;      ///< 1
  uint32_t token_bytes;  ///< 1, 2 or 4: unsigned integers
  uint64_t token_count;  ///< end-of-document tokens included
  uint64_t document_count;
  uint64_t vocab_size;      ///< of the tokenizer
  uint64_t max_token;       ///< the largest id in the file
  int64_t end_of_document;  ///< the id after each document; -1: none
  char tokenizer[32];       ///< its name, zero padded
  uint64_t body_hash[2];    ///< XXH3-128 (high, low) of all that follows the header
  uint64_t reserved[2];
  uint64_t header_hash;  ///< XXH3-64 of the bytes before it
};
static_assert(sizeof(TokenFileHeader) == 128);

/// Writes a token file document by document: aside, flushed, renamed by finish(). Without finish()
/// nothing is left behind.
class TokenFileWriter {
 public:
  TokenFileWriter(std::string path, std::string tokenizer, int64_t vocab_size,
                  std::optional<int64_t> end_of_document = std::nullopt);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  void operator=(const TokenFileWriter&) = delete;

  /// The next ids of a document, which begins with the first of them. Ids outside of the
  /// vocabulary, and the end-of-document id inside of a document, are an Error(data) that names the
  /// position, and nothing of `ids` is added.
  void add(std::span<const int64_t> ids);
  void end_document();
  void add_document(std::span<const int64_t> ids) {
    add(ids);
    end_document();
  }
  /// Refuses a file of no documents or no tokens.
  TokenFileHeader finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A token file mapped into memory; it holds no descriptor. Opening reads the header only.
class TokenFile {
 public:
  /// Error(data) that names the file, what is wrong and the fix: missing, empty, another format,
  /// cut, or with ids that the model's `vocab_size` does not have (0: not checked).
  explicit TokenFile(const std::string& path, int64_t vocab_size = 0);

  const std::string& path() const { return path_; }
  const TokenFileHeader& header() const { return header_; }
  int64_t count() const { return static_cast<int64_t>(header_.token_count); }
  std::string tokenizer() const;

  /// Tokens [begin, begin + count) as int64. Checks every id against the vocabulary again: an
  /// Error(data) names the file, the position, the id and the vocabulary.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// Token positions where documents start.
  std::vector<int64_t> document_starts() const;

  /// Reads everything: hash, largest id, document starts. Returns what is wrong, empty if nothing.
  std::string check() const;

 private:
  std::string path_;
  TokenFileHeader header_{};
  int64_t vocab_size_ = 0;
  MappedFile mapped_;
};

}  // namespace phalanx
