#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "phalanx/base/files.h"

namespace phalanx {

/// A place that holds folders of files: a folder of the file system, or s3://bucket/prefix. Names
/// are relative to it, with '/' between their parts. Errors are Error(checkpoint) with the whole
/// path. Safe to use from several threads, one Reader or Writer per thread and file.
class Storage {
 public:
  Storage() = default;
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  void operator=(const Storage&) = delete;

  /// The whole path or URL of `name` ("" is the place itself), for messages.
  virtual std::string path(const std::string& name) const = 0;

  virtual std::unique_ptr<Reader> open(const std::string& name) const = 0;
  /// A new file, and the folders that it needs. It is whole, and there for certain, once finish()
  /// returned; an object store shows nothing of it before.
  virtual std::unique_ptr<Writer> create(const std::string& name) = 0;
  /// Puts a small file in the place of another one, or of none: readers see the old or the new.
  virtual void replace(const std::string& name, std::string_view contents) = 0;

  struct Item {
    std::string name;  ///< without the folder
    bool is_folder = false;
    bool is_link = false;  ///< symbolic; the rest is said of what it points to
    int64_t bytes = 0;
  };
  /// What `folder` holds, by name; nothing if it does not exist.
  virtual std::vector<Item> list(const std::string& folder) const = 0;
  /// Removes a file, or a folder with all that it holds; a checkpoint stops being one first. What
  /// is not there is no error.
  virtual void remove(const std::string& name) = 0;

  /// The name of a new folder for the files of a checkpoint that readers do not take for one until
  /// publish(). A file system writes aside and renames; an object store has no rename: there the
  /// last file written, the manifest, makes the checkpoint, and a step that is taken gets a name of
  /// its own (step-20-2).
  virtual std::string begin(int64_t step) = 0;
  /// Makes the finished folder the checkpoint of `step`; returns its lasting name ("step-20"). An
  /// older one of that step is replaced, never before the new one is whole.
  virtual std::string publish(const std::string& unfinished, int64_t step) = 0;
  /// The folders here, named step-N, that are checkpoints or were some: an object store's
  /// unfinished ones, without a manifest, are none.
  virtual std::vector<std::string> checkpoints() const = 0;
  /// What saves that were killed left here: to be removed, never to be read. Only who may write
  /// asks.
  virtual std::vector<std::string> unfinished() const = 0;
};

/// Whether `where` is no folder, as "s3://bucket/prefix".
bool is_url(const std::string& where);

/// "s3://bucket/prefix" or a folder; makes nothing.
std::unique_ptr<Storage> open_storage(const std::string& where);

/// `folder`/`name`; `name` if the folder is "", the place itself.
std::string in_folder(const std::string& folder, const std::string& name);

/// A name without folders that does not begin with a dot: what a file of a checkpoint is called.
bool is_plain_name(const std::string& file);

/// Whether `items` have a folder, or a file, of that name.
bool holds(const std::vector<Storage::Item>& items, const std::string& name, bool folder);

/// A small file as a whole; Error(checkpoint) if it has more bytes than `longest`.
constexpr int64_t longest_text = 1 << 30;
std::string read_text(const Storage& storage, const std::string& name,
                      int64_t longest = longest_text);

/// The step of a checkpoint's folder, named step-N or step-N-K; none if the name is another.
std::optional<int64_t> step_of(const std::string& name);

}  // namespace phalanx
