#include "runtime/data/prepare.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>

#include "runtime/data/token_file.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

// One gzip member that holds `text`.
std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string data(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(data.data());
  stream.avail_out = data.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  data.resize(stream.total_out);
  deflateEnd(&stream);
  return data;
}

std::string LongText(int64_t bytes) {
  std::string text;
  for (int64_t i = 0; text.size() < bytes; ++i) text += std::to_string(i * i) + "\n";
  text.resize(bytes);
  return text;
}

class PrepareTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return JoinPath(directory_, name); }
  absl::StatusOr<PrepareStats> Prepare(const std::vector<std::string>& inputs,
                                       const PrepareOptions& options = {}) {
    auto tokenizer = MakeTokenizer("bytes");
    return PrepareTokens(PosixFileSystem(), inputs, **tokenizer, Path("out.tokens"), options);
  }
  // The documents of the output as text, without their end-of-document tokens.
  std::vector<std::string> Documents() {
    auto file = TokenFile::Open(PosixFileSystem(), Path("out"));
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return {};
    EXPECT_TRUE((*file)->Verify().ok());
    std::vector<std::string> documents;
    int64_t begin = 0;
    for (int64_t i = 0; i < (*file)->documents(); ++i) {
      std::vector<int32_t> tokens((*file)->DocumentEnd(i) - begin);
      (*file)->Read(begin, tokens.size(), tokens.data());
      EXPECT_EQ(tokens.back(), 256);
      tokens.pop_back();
      documents.push_back(std::string(tokens.begin(), tokens.end()));
      begin = (*file)->DocumentEnd(i);
    }
    return documents;
  }

  std::string directory_ = NewTestDirectory();
};

TEST_F(PrepareTest, OneDocumentPerInput) {
  WriteTestFile(Path("a"), "one\n\xff");
  WriteTestFile(Path("empty"), "");
  WriteTestFile(Path("b.gz"), Gzip("two"));
  auto stats = Prepare({Path("a"), Path("empty"), Path("b.gz")});
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(Documents(), (std::vector<std::string>{"one\n\xff", "", "two"}));
  EXPECT_EQ(stats->text_bytes, 8);
  EXPECT_EQ(stats->tokens, 11);
  EXPECT_EQ(stats->documents, 3);
  EXPECT_EQ(stats->checksum, (*TokenFile::Open(PosixFileSystem(), Path("out")))->tokens_checksum());
}

TEST_F(PrepareTest, GzipOfManyMembersAndPieces) {
  const std::string first = LongText(3 << 20), second = LongText(1000);
  WriteTestFile(Path("x"), Gzip(first) + Gzip("") + Gzip(second) + std::string(512, '\0'));
  int64_t calls = 0, last = 0;
  PrepareOptions options;
  options.progress = [&](const PrepareStats& stats) {
    ++calls;
    EXPECT_GE(stats.text_bytes, last);
    last = stats.text_bytes;
  };
  ASSERT_TRUE(Prepare({Path("x")}, options).ok());
  EXPECT_EQ(Documents(), std::vector<std::string>{first + second});
  EXPECT_GE(calls, 4);
  EXPECT_EQ(last, first.size() + second.size());
}

TEST_F(PrepareTest, ByteRanges) {
  const std::string text = LongText((2 << 20) + 100);
  WriteTestFile(Path("plain"), text);
  WriteTestFile(Path("gzip"), Gzip(text));
  for (const char* name : {"plain", "gzip"}) {
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 10}, {(1 << 20) - 1, (1 << 20) + 1}, {5, 2 << 20}, {2 << 20, 1 << 30}, {7, 7}}) {
      PrepareOptions options;
      options.begin_byte = begin;
      options.end_byte = end;
      ASSERT_TRUE(Prepare({Path(name)}, options).ok());
      EXPECT_EQ(Documents(), std::vector<std::string>{text.substr(begin, end - begin)});
    }
  }
}

TEST_F(PrepareTest, DamagedGzipNamesTheFile) {
  const std::string data = Gzip(LongText(300));
  for (size_t size = 2; size < data.size(); ++size) {
    WriteTestFile(Path("x.gz"), data.substr(0, size));
    const absl::Status status = Prepare({Path("x.gz")}).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << size;
    EXPECT_NE(status.ToString().find(Path("x.gz") + " is truncated"), std::string::npos) << status;
  }
  for (size_t byte = 10; byte < data.size(); ++byte) {
    std::string damaged = data;
    damaged[byte] ^= 0x55;
    WriteTestFile(Path("x.gz"), damaged);
    EXPECT_TRUE(absl::IsDataLoss(Prepare({Path("x.gz")}).status())) << byte;
  }
  WriteTestFile(Path("x.gz"), data + "tail");
  EXPECT_TRUE(absl::IsDataLoss(Prepare({Path("x.gz")}).status()));
  WriteTestFile(Path("x.gz"), data + std::string(1, '\0') + Gzip("more"));
  EXPECT_TRUE(absl::IsDataLoss(Prepare({Path("x.gz")}).status()));
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 1);  // nothing of the outputs
}

TEST_F(PrepareTest, ErrorsKeepTheOlderFile) {
  WriteTestFile(Path("a"), "text");
  ASSERT_TRUE(Prepare({Path("a")}).ok());
  const absl::Status status = Prepare({Path("a"), Path("missing")}).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(status.ToString().find(Path("missing")), std::string::npos);
  EXPECT_EQ(Documents(), std::vector<std::string>{"text"});
  EXPECT_FALSE(Prepare({}).ok());
  EXPECT_FALSE(Prepare({directory_}).ok());
}

TEST_F(PrepareTest, ZstdIsRefused) {
  WriteTestFile(Path("x.zst"), "\x28\xb5\x2f\xfd and more");
  EXPECT_TRUE(absl::IsUnimplemented(Prepare({Path("x.zst")}).status()));
}

}  // namespace
}  // namespace fathom
