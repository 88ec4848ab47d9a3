#include "phalanx/checkpoint/s3_storage.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/read_ahead.h"
#include "phalanx/checkpoint/s3_client.h"
#include "phalanx/checkpoint/s3_file.h"
#include "phalanx/checkpoint/s3_xml.h"

namespace phalanx {
namespace {

constexpr const char* manifest_name = "manifest.json";

// A server that leads back to a page would be asked for ever.
void require_new(std::set<std::string>& seen, const std::string& next, const std::string& path) {
  require(seen.insert(next).second, ExitCode::checkpoint, "cannot list ", path,
          ": the server's pages come back to '", next, "'");
}

// Every page of a list of keys that begin with `prefix`; with `delimiter`, folders are not entered.
S3Page list_all(const S3Client& client, const std::string& prefix, bool enter,
                const std::string& path) {
  S3Request request{.query = {{"list-type", "2"}, {"prefix", prefix}}};
  if (!enter) request.query["delimiter"] = "/";
  S3Page all;
  std::set<std::string> seen;
  while (true) {
    const S3Response response = client.require_good(request, "cannot list " + path);
    S3Page page = read_s3_page(response.body, path);
    std::move(page.objects.begin(), page.objects.end(), std::back_inserter(all.objects));
    std::move(page.folders.begin(), page.folders.end(), std::back_inserter(all.folders));
    if (page.next.empty()) return all;
    require_new(seen, page.next, path);
    request.query["continuation-token"] = page.next;
  }
}

// Multipart uploads that nobody completed. Some users may not list them: then they stay.
std::vector<S3Page::Object> open_uploads(const S3Client& client, const std::string& prefix,
                                         const std::string& path) {
  S3Request request{.query = {{"uploads", ""}, {"prefix", prefix}}};
  std::vector<S3Page::Object> all;
  std::set<std::string> seen;
  while (true) {
    const S3Response response = client.perform(request);
    if (response.trouble.empty() && (response.status == 403 || response.status == 501)) {
      static std::atomic<bool> said = false;
      if (!said.exchange(true))
        log_warning(text("uploads that were cut off stay in ", path, ": the server answers ",
                         response.status, " to a list of them"));
      return all;
    }
    if (!response.good()) client.fail_request(request, response, "cannot list " + path);
    S3Page page = read_s3_page(response.body, path);
    std::move(page.objects.begin(), page.objects.end(), std::back_inserter(all));
    if (page.next.empty()) return all;
    require_new(seen, page.next + " " + page.next_upload, path);
    request.query["key-marker"] = page.next;
    request.query["upload-id-marker"] = page.next_upload;
  }
}

}  // namespace

S3Storage::S3Storage(const std::string& url) {
  constexpr std::string_view scheme = "s3://";
  std::string rest = url.substr(scheme.size());
  while (rest.ends_with('/')) rest.pop_back();
  const size_t slash = rest.find('/');
  bucket_ = rest.substr(0, slash);
  prefix_ = slash == std::string::npos ? "" : rest.substr(slash + 1);
  const bool plain =
      bucket_.size() >= 3 && bucket_.size() <= 63 &&
      std::all_of(bucket_.begin(), bucket_.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
      });
  require(plain, ExitCode::checkpoint, url, ": '", bucket_,
          "' is no name of a bucket (3 to 63 lower-case letters, digits, '-' and '.'); write "
          "s3://bucket/prefix");
  require(("/" + prefix_).find("//") == std::string::npos, ExitCode::checkpoint, url,
          " has an empty part between two '/'");
  client_ = std::make_shared<S3Client>(read_s3_settings(), bucket_);
}

S3Storage::~S3Storage() = default;

std::string S3Storage::key(const std::string& name) const { return in_folder(prefix_, name); }

std::string S3Storage::path(const std::string& name) const {
  return "s3://" + in_folder(bucket_, key(name));
}

std::unique_ptr<Reader> S3Storage::open(const std::string& name) const {
  return std::make_unique<ReadAhead>(std::make_unique<S3Reader>(client_, key(name), path(name)));
}

std::unique_ptr<Writer> S3Storage::create(const std::string& name) {
  return std::make_unique<S3Writer>(client_, key(name), path(name));
}

void S3Storage::replace(const std::string& name, std::string_view contents) {
  S3Writer writer(client_, key(name), path(name));
  writer.write(contents.data(), static_cast<int64_t>(contents.size()));
  writer.finish();
}

std::vector<Storage::Item> S3Storage::list(const std::string& folder) const {
  const std::string inside = key(folder).empty() ? "" : key(folder) + "/";
  const S3Page page = list_all(*client_, inside, false, path(folder));
  std::vector<Item> items;
  for (const auto& object : page.objects)
    if (object.key.size() > inside.size())  // else what some tools put there for the folder itself
      items.push_back({object.key.substr(inside.size()), false, false, object.bytes});
  for (std::string name : page.folders) {
    name.pop_back();
    items.push_back({name.substr(inside.size()), true, false, 0});
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.name < b.name; });
  return items;
}

bool S3Storage::has_manifest(const std::string& folder) const {
  const auto items = list(folder);
  return std::any_of(items.begin(), items.end(),
                     [](const Item& item) { return item.name == manifest_name; });
}

void S3Storage::remove(const std::string& name) {
  const std::string doing = "cannot remove " + path(name);
  const std::string folder = key(name) + "/";
  const auto erase = [&](const std::string& key, const std::string& upload) {
    S3Request request{.method = "DELETE", .key = key};
    if (!upload.empty()) request.query["uploadId"] = upload;
    const S3Response response = client_->perform(request);
    if (!response.good() && response.status != 404) client_->fail_request(request, response, doing);
  };
  auto objects = list_all(*client_, folder, true, path(name)).objects;
  std::partition(objects.begin(), objects.end(), [&](const auto& object) {
    return object.key == folder + manifest_name;  // no checkpoint from here on
  });
  for (const auto& object : objects) erase(object.key, "");
  for (const auto& upload : open_uploads(*client_, folder, path(name)))
    erase(upload.key, upload.upload);
  if (objects.empty())
    erase(key(name), "");
  else
    erase(folder, "");  // some servers keep an empty folder
}

std::string S3Storage::begin(int64_t step) {
  std::set<std::string> taken;
  for (const Item& item : list("")) taken.insert(item.name);
  const std::string plain = text("step-", step);
  std::string name = plain;
  for (int attempt = 2; taken.contains(name); ++attempt) name = text(plain, "-", attempt);
  return name;
}

std::string S3Storage::publish(const std::string& unfinished, int64_t step) {
  require(has_manifest(unfinished), ExitCode::checkpoint, path(unfinished),
          " cannot become a checkpoint: it has no manifest.json");
  for (const Item& item : list(""))
    if (item.is_folder && step_of(item.name) == step && item.name != unfinished) try {
        remove(item.name);
      } catch (const Error& error) {
        log_warning(
            text("the checkpoint is complete, but the one it replaced is left: ", error.what()));
      }
  return unfinished;
}

std::vector<std::string> S3Storage::checkpoints() const {
  std::vector<std::string> names;
  for (const Item& item : list(""))
    if (item.is_folder && step_of(item.name) && has_manifest(item.name)) names.push_back(item.name);
  return names;
}

std::vector<std::string> S3Storage::unfinished() const {
  std::set<std::string> names, whole;
  for (const Item& item : list(""))  // some servers list folders that are empty by now
    if (item.name.starts_with(".tmp-") || (item.is_folder && step_of(item.name)))
      names.insert(item.name);
  const size_t inside = prefix_.empty() ? 0 : prefix_.size() + 1;
  for (const auto& object : list_all(*client_, key("step-"), true, path("")).objects) {
    const std::string name = object.key.substr(inside), first = name.substr(0, name.find('/'));
    if (name == in_folder(first, manifest_name)) whole.insert(first);
  }
  for (const auto& upload : open_uploads(*client_, key("step-"), path(""))) {
    const std::string name = upload.key.substr(inside), first = name.substr(0, name.find('/'));
    if (step_of(first)) names.insert(first);
  }
  for (const auto& name : whole) names.erase(name);
  return {names.begin(), names.end()};
}

}  // namespace phalanx
