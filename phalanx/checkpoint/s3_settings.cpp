#include "phalanx/checkpoint/s3_settings.h"

#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"

namespace phalanx {
namespace {

using Fields = std::map<std::string, std::string>;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values)
    if (!value.empty()) return value;
  return "";
}

std::string trimmed(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t\r"), end = line.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
}

// The fields of [section] in a file of the AWS tools. Adds to `found`; tells whether there is one.
// Lines that begin with a blank belong to the setting above them and are none of ours.
bool read_section(const std::string& path, const std::string& section, Fields& found) {
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return false;
  std::istringstream lines(read_file(path, ExitCode::checkpoint));
  bool inside = false, seen = false;
  for (std::string line; std::getline(lines, line);) {
    const std::string content = trimmed(line);
    if (content.empty() || content[0] == '#' || content[0] == ';') continue;
    if (content[0] == '[') {
      inside = trimmed(content.substr(1, content.find(']') - 1)) == section;
      seen = seen || inside;
      continue;
    }
    const size_t equals = content.find('=');
    if (!inside || equals == std::string::npos || line[0] == ' ' || line[0] == '\t') continue;
    found[trimmed(content.substr(0, equals))] = trimmed(content.substr(equals + 1));
  }
  return seen;
}

struct Profile {
  std::string name, credentials_file, config_file;
  Fields fields;
};

Profile read_profile() {
  const std::string home = environment("HOME") + "/.aws/";
  Profile profile;
  const std::string named = environment("AWS_PROFILE");
  profile.name = first_of({named, "default"});
  profile.credentials_file =
      first_of({environment("AWS_SHARED_CREDENTIALS_FILE"), home + "credentials"});
  profile.config_file = first_of({environment("AWS_CONFIG_FILE"), home + "config"});
  const bool is_default = profile.name == "default";
  const bool configured = read_section(
      profile.config_file, is_default ? "default" : "profile " + profile.name, profile.fields);
  const bool credited = read_section(profile.credentials_file, profile.name, profile.fields);
  require(named.empty() || configured || credited, ExitCode::checkpoint, "there is no profile ",
          named, " (AWS_PROFILE) in ", profile.credentials_file, " or ", profile.config_file);
  return profile;
}

}  // namespace

S3Settings read_s3_settings() {
  Profile profile = read_profile();
  Fields& fields = profile.fields;
  S3Settings settings;
  settings.region = first_of({environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"),
                              fields["region"], "us-east-1"});
  settings.endpoint = first_of({environment("AWS_ENDPOINT_URL_S3"), environment("AWS_ENDPOINT_URL"),
                                fields["endpoint_url"]});
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  require(
      settings.endpoint.empty() || settings.endpoint.starts_with("http://") ||
          settings.endpoint.starts_with("https://"),
      ExitCode::checkpoint, "the S3 endpoint '", settings.endpoint,
      "' (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url of the profile) must begin with "
      "http:// or https://");
  settings.key = environment("AWS_ACCESS_KEY_ID");
  settings.secret = environment("AWS_SECRET_ACCESS_KEY");
  settings.session_token = environment("AWS_SESSION_TOKEN");
  settings.source = "the environment";
  if (settings.key.empty() && settings.secret.empty()) {
    settings.key = fields["aws_access_key_id"];
    settings.secret = fields["aws_secret_access_key"];
    settings.session_token = fields["aws_session_token"];
    settings.source = text("profile ", profile.name, " of ", profile.credentials_file);
  }
  require(
      !settings.key.empty() && !settings.secret.empty(), ExitCode::checkpoint,
      settings.key.empty() && settings.secret.empty() ? "there are no" : "there are only half",
      " credentials for S3 in ", settings.source,
      "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (`aws configure export-credentials "
      "--format env` prints them), or write aws_access_key_id and aws_secret_access_key under [",
      profile.name, "] in ", profile.credentials_file);
  return settings;
}

}  // namespace phalanx
