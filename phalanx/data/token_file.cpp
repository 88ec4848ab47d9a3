#include "phalanx/data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "phalanx/base/text.h"

namespace phalanx {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr char magic[8] = {'P', 'H', 'X', 'T', 'O', 'K', 'E', 'N'};
constexpr size_t buffer_bytes = 1 << 20;

uint32_t token_bytes_for(int64_t vocab_size) {
  return vocab_size <= 1 << 8 ? 1 : vocab_size <= 1 << 16 ? 2 : 4;
}

uint64_t header_hash(const TokenFileHeader& header) {
  return XXH3_64bits(&header, offsetof(TokenFileHeader, header_hash));
}

uint64_t starts_offset(const TokenFileHeader& header) {
  return (sizeof(TokenFileHeader) + header.token_count * header.token_bytes + 7) / 8 * 8;
}

// What is wrong with a file of `size` bytes that begins with `header`; empty if nothing.
std::string header_defect(const TokenFileHeader& header, uint64_t size) {
  if (size == 0) return "is empty; make it again with `phalanx data tokenize`";
  if (size < 8 || std::memcmp(header.magic, magic, sizeof(magic)) != 0)
    return "is no token file; make one from text with `phalanx data tokenize`";
  if (size < sizeof(header))
    return text("has ", size, " bytes, less than its header of ", sizeof(header),
                ": it was cut; make it again");
  if (header.version != 1)
    return text("has format version ", header.version, "; this program reads version 1");
  if (header.header_hash != header_hash(header))
    return "has a damaged header (its hash differs); make it again";
  const uint32_t width = header.token_bytes;
  if ((width != 1 && width != 2 && width != 4) || header.token_count > uint64_t{1} << 56 ||
      header.document_count > uint64_t{1} << 56)
    return text("has an impossible header (", header.token_count, " tokens of ", width, " bytes)");
  if (header.document_count == 0) return "holds no documents; make it again";
  const uint64_t expected = starts_offset(header) + header.document_count * 8;
  if (size != expected)
    return text("has ", size, " bytes, its header says ", expected, " (", header.token_count,
                " tokens of ", width, " bytes): it was cut or changed; make it again");
  return "";
}

}  // namespace

struct TokenFileWriter::State {
  std::string path, aside;
  OutputFile file;
  TokenFileHeader header{};
  bool finished = false;
  bool open = false;  // a document has begun and not ended
  std::vector<uint8_t> buffer;
  std::vector<uint64_t> starts;
  XXH3_state_t* hash = XXH3_createState();

  explicit State(std::string target)
      : path(std::move(target)), aside(path + ".tmp"), file(aside, ExitCode::data) {
    XXH3_128bits_reset(hash);
  }
  ~State() {
    XXH3_freeState(hash);
    std::error_code ignored;
    if (!finished) std::filesystem::remove(aside, ignored);
  }
  void flush() {
    XXH3_128bits_update(hash, buffer.data(), buffer.size());
    file.write(buffer.data(), static_cast<int64_t>(buffer.size()));
    buffer.clear();
  }
  void put(uint64_t value, size_t bytes) {
    const size_t end = buffer.size();
    buffer.resize(end + bytes);
    std::memcpy(buffer.data() + end, &value, bytes);
    if (buffer.size() >= buffer_bytes) flush();
  }
  void put_token(int64_t id) {
    put(static_cast<uint64_t>(id), header.token_bytes);
    ++header.token_count;
    header.max_token = std::max(header.max_token, static_cast<uint64_t>(id));
  }
};

TokenFileWriter::TokenFileWriter(std::string path, std::string tokenizer, int64_t vocab_size,
                                 std::optional<int64_t> end_of_document) {
  require(vocab_size > 0 && vocab_size <= int64_t{1} << 32, ExitCode::usage, "a vocabulary of ",
          vocab_size, " ids cannot be stored in a token file");
  state_ = std::make_unique<State>(std::move(path));
  TokenFileHeader& header = state_->header;
  state_->file.write(&header, sizeof(header));  // zeros, until finish() knows better
  std::memcpy(header.magic, magic, sizeof(magic));
  header.version = 1;
  header.token_bytes = token_bytes_for(vocab_size);
  header.vocab_size = static_cast<uint64_t>(vocab_size);
  header.end_of_document = end_of_document.value_or(-1);
  std::strncpy(header.tokenizer, tokenizer.c_str(), sizeof(header.tokenizer) - 1);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::add(std::span<const int64_t> ids) {
  TokenFileHeader& header = state_->header;
  const int64_t vocab_size = static_cast<int64_t>(header.vocab_size);
  const size_t document = state_->starts.size() - state_->open;
  const uint64_t before = state_->open ? header.token_count - state_->starts.back() : 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    require(0 <= ids[i] && ids[i] < vocab_size, ExitCode::data, "document ", document,
            " has token id ", ids[i], " at position ", before + i,
            ", outside of the vocabulary of ", vocab_size);
    require(ids[i] != header.end_of_document, ExitCode::data, "document ", document,
            " has the end-of-document id ", ids[i], " at position ", before + i,
            "; remove it or tokenize without end of document");
  }
  if (!state_->open) state_->starts.push_back(header.token_count);
  state_->open = true;
  for (int64_t id : ids) state_->put_token(id);
}

void TokenFileWriter::end_document() {
  if (state_->header.end_of_document >= 0) state_->put_token(state_->header.end_of_document);
  state_->open = false;
}

TokenFileHeader TokenFileWriter::finish() {
  State& state = *state_;
  TokenFileHeader& header = state.header;
  require(!state.starts.empty() && header.token_count > 0, ExitCode::data, "nothing to write to ",
          state.path, ": ", state.starts.size(), " documents with ", header.token_count,
          " tokens were found");
  header.document_count = state.starts.size();
  const uint64_t end = sizeof(header) + header.token_count * header.token_bytes;
  state.put(0, starts_offset(header) - end);
  for (uint64_t start : state.starts) state.put(start, 8);
  state.flush();
  const XXH128_hash_t hash = XXH3_128bits_digest(state.hash);
  header.body_hash[0] = hash.high64, header.body_hash[1] = hash.low64;
  header.header_hash = header_hash(header);
  state.file.write_at(&header, sizeof(header), 0);
  state.file.finish();
  rename_path(state.aside, state.path, ExitCode::data);
  state.finished = true;
  const auto folder = std::filesystem::path(state.path).parent_path();
  sync_folder(folder.empty() ? "." : folder.string(), ExitCode::data);
  return header;
}

TokenFile::TokenFile(const std::string& path, int64_t vocab_size)
    : path_(path), vocab_size_(vocab_size), mapped_(path, ExitCode::data) {
  const auto bytes = mapped_.bytes();
  if (!bytes.empty()) std::memcpy(&header_, bytes.data(), std::min(bytes.size(), sizeof(header_)));
  const std::string defect = header_defect(header_, bytes.size());
  require(defect.empty(), ExitCode::data, path, " ", defect);
  require(vocab_size == 0 || header_.max_token < static_cast<uint64_t>(vocab_size), ExitCode::data,
          path, " has token ids up to ", header_.max_token, ", the model's vocabulary has ",
          vocab_size, ": it needs model.vocab_size of ", header_.max_token + 1,
          " or more, or other data");
}

std::string TokenFile::tokenizer() const {
  return std::string(header_.tokenizer, strnlen(header_.tokenizer, sizeof(header_.tokenizer)));
}

namespace {

// Widens, and returns the largest id seen: one pass, so that the check costs nothing.
template <class T>
int64_t widen(const uint8_t* from, int64_t count, int64_t* out) {
  const T* tokens = reinterpret_cast<const T*>(from);
  T largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = tokens[i];
    largest = std::max(largest, tokens[i]);
  }
  return largest;
}

}  // namespace

void TokenFile::read(int64_t begin, int64_t count, int64_t* out) const {
  require(0 <= begin && 0 <= count && begin + count <= this->count(), ExitCode::data, "tokens [",
          begin, ", ", begin + count, ") are not in ", path_, ", which has ", this->count());
  const uint8_t* from = mapped_.bytes().data() + sizeof(header_) + begin * header_.token_bytes;
  const int64_t largest = header_.token_bytes == 1   ? widen<uint8_t>(from, count, out)
                          : header_.token_bytes == 2 ? widen<uint16_t>(from, count, out)
                                                     : widen<uint32_t>(from, count, out);
  const int64_t limit = vocab_size_ > 0 ? vocab_size_ : static_cast<int64_t>(header_.vocab_size);
  if (largest < limit) [[likely]]
    return;
  const int64_t at = std::find_if(out, out + count, [&](int64_t id) { return id >= limit; }) - out;
  fail(ExitCode::data, path_, " has token id ", out[at], " at position ", begin + at,
       ", outside of the vocabulary of ", limit,
       "; the file is damaged or was made for another model");
}

std::vector<int64_t> TokenFile::document_starts() const {
  std::vector<int64_t> starts(header_.document_count);
  if (!starts.empty())
    std::memcpy(starts.data(), mapped_.bytes().data() + starts_offset(header_), starts.size() * 8);
  return starts;
}

std::string TokenFile::check() const {
  const auto body = mapped_.bytes().subspan(sizeof(header_));
  const XXH128_hash_t hash = XXH3_128bits(body.data(), body.size());
  if (hash.high64 != header_.body_hash[0] || hash.low64 != header_.body_hash[1])
    return path_ + " is damaged: the hash of its tokens differs from the header's; make it again";
  std::vector<int64_t> ids;
  int64_t largest = 0;
  for (int64_t begin = 0; begin < count(); begin += buffer_bytes) {
    ids.resize(std::min<int64_t>(buffer_bytes, count() - begin));
    read(begin, static_cast<int64_t>(ids.size()), ids.data());
    largest = std::max(largest, *std::max_element(ids.begin(), ids.end()));
  }
  if (largest != static_cast<int64_t>(header_.max_token))
    return text(path_, " has ids up to ", largest, ", its header says ", header_.max_token);
  const auto starts = document_starts();
  if (!std::is_sorted(starts.begin(), starts.end()) ||
      (!starts.empty() && (starts.front() != 0 || starts.back() > count())))
    return path_ + " has document starts out of order";
  return "";
}

}  // namespace phalanx
