#include "phalanx/checkpoint/s3_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/s3_xml.h"
#include "phalanx/checkpoint/storage.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

void set_environment(const std::vector<std::pair<const char*, std::string>>& values) {
  for (const char* name :
       {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
        "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE",
        "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"})
    unsetenv(name);
  for (const auto& [name, value] : values) setenv(name, value.c_str(), 1);
}

void expect_error(const std::function<void()>& work, const std::vector<std::string>& fragments) {
  try {
    work();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint);
    for (const auto& fragment : fragments)
      EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos) << error.what();
  }
}

TEST(S3Settings, AreThoseOfTheEnvironmentOrTheProfile) {
  const std::string home = testing::temporary_folder();
  setenv("HOME", home.c_str(), 1);
  set_environment({});
  expect_error(read_s3_settings,
               {"there are no credentials", "AWS_ACCESS_KEY_ID", home + "/.aws/credentials"});
  set_environment({{"AWS_ACCESS_KEY_ID", "K"}});
  expect_error(read_s3_settings, {"only half", "the environment"});
  std::filesystem::create_directory(home + "/.aws");
  std::ofstream(home + "/.aws/credentials")
      << "# ours\n[default]\r\naws_access_key_id = DK\r\n aws_secret_access_key=nested\n"
         "aws_secret_access_key=D/S=\n\n[lab]\naws_access_key_id=LK\naws_secret_access_key = LS\n"
         "aws_session_token = LT\n[half]\naws_access_key_id = H\n";
  std::ofstream(home + "/.aws/config")
      << "[default]\nregion = eu-west-1\ns3 =\n    region = nested\n[ profile lab ]\n"
         "endpoint_url = http://lab:9000/\n";
  set_environment({});
  S3Settings found = read_s3_settings();
  EXPECT_EQ(found.key + " " + found.secret + " " + found.region, "DK D/S= eu-west-1");
  EXPECT_EQ(found.source, "profile default of " + home + "/.aws/credentials");
  EXPECT_EQ(found.endpoint + found.session_token, "");
  set_environment({{"AWS_PROFILE", "lab"}, {"AWS_DEFAULT_REGION", "b"}});
  found = read_s3_settings();
  EXPECT_EQ(found.key + " " + found.secret + " " + found.session_token, "LK LS LT");
  EXPECT_EQ(found.region + " " + found.endpoint, "b http://lab:9000");
  set_environment({{"AWS_PROFILE", "lab"},
                   {"AWS_ACCESS_KEY_ID", "EK"},
                   {"AWS_SECRET_ACCESS_KEY", "ES"},
                   {"AWS_REGION", "a"},
                   {"AWS_DEFAULT_REGION", "b"},
                   {"AWS_ENDPOINT_URL", "http://every"},
                   {"AWS_ENDPOINT_URL_S3", "https://s3"}});
  found = read_s3_settings();
  EXPECT_EQ(found.key + " " + found.secret + found.session_token, "EK ES") << "no mixture";
  EXPECT_EQ(found.region + " " + found.endpoint, "a https://s3");
  set_environment({{"AWS_PROFILE", "none"}});
  expect_error(read_s3_settings, {"there is no profile none"});
  set_environment({{"AWS_PROFILE", "half"}});
  expect_error(read_s3_settings, {"only half", "profile half"});
  set_environment({{"AWS_SHARED_CREDENTIALS_FILE", home + "/else"}});
  expect_error(read_s3_settings, {"there are no credentials", home + "/else"});
  set_environment({{"AWS_ENDPOINT_URL", "localhost:9000"}});
  expect_error(read_s3_settings, {"localhost:9000", "http://"});
}

TEST(S3Settings, PlacesThatAreNoneAreRefused) {
  set_environment({{"AWS_ACCESS_KEY_ID", "K"}, {"AWS_SECRET_ACCESS_KEY", "S"}});
  for (const std::string place : {"s3://", "s3:///a", "s3://Bucket/a", "s3://ab/c", "s3://a_b_c/"})
    expect_error([&] { open_storage(place); }, {place, "no name of a bucket"});
  expect_error([] { open_storage("s3://bucket/a//b"); }, {"s3://bucket/a//b", "empty part"});
  expect_error([] { open_storage("gs://bucket/a"); }, {"gs://bucket/a", "s3://"});
  expect_error([] { open_storage(""); }, {"empty"});
  EXPECT_EQ(open_storage("s3://bucket")->path("a/b"), "s3://bucket/a/b");
  EXPECT_EQ(open_storage("s3://bucket/p/q//")->path(""), "s3://bucket/p/q");
  EXPECT_EQ(open_storage("runs/a/")->path("b"), "runs/a/b");
}

TEST(S3Xml, ListsAndErrorsOfServers) {
  const S3Page page = read_s3_page(
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
      "<IsTruncated>true</IsTruncated><NextContinuationToken>t=/+</NextContinuationToken>"
      "<Contents><Key>a &amp; b&#x20;&lt;c&gt;</Key><Size>12345678901</Size></Contents>"
      "<CommonPrefixes><Prefix>step-1/</Prefix></CommonPrefixes></ListBucketResult>",
      "url");
  ASSERT_EQ(page.objects.size(), 1u);
  EXPECT_EQ(page.objects[0].key, "a & b <c>");
  EXPECT_EQ(page.objects[0].bytes, 12345678901);
  EXPECT_EQ(page.folders, std::vector<std::string>{"step-1/"});
  EXPECT_EQ(page.next, "t=/+");
  for (const std::string wrong :
       {"", "<html><body>hello</body></html>", "<ListBucketResult><Contents>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>1x</Size></Contents></ListBucketResult>"})
    expect_error([&] { read_s3_page(wrong, "http://server/b"); }, {"http://server/b"});
  EXPECT_EQ(read_s3_error("<Error><Code>SlowDown</Code></Error>").code, "SlowDown");
  EXPECT_EQ(read_s3_error("not xml").code + read_s3_error("").code, "");
}

TEST(Storage, NamesOfSteps) {
  for (const auto& [name, step] : std::vector<std::pair<std::string, int64_t>>{
           {"step-0", 0}, {"step-12", 12}, {"step-12-3", 12}, {"step-007", 7}})
    EXPECT_EQ(step_of(name), step) << name;
  for (const std::string name :
       {"step-", "step", "step-x", "step--1", "step-1-", "step-1-x", "step-1-2-3", "step-1x",
        "step-+1", ".tmp-step-1", "step-99999999999999999999", "step-notes"})
    EXPECT_EQ(step_of(name), std::nullopt) << name;
}

}  // namespace
}  // namespace phalanx
