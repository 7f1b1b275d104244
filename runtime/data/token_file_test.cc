#include "runtime/data/token_file.h"

#include <gtest/gtest.h>

#include "runtime/checksum.h"
#include "runtime/data/token_format.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

const std::vector<std::vector<int32_t>> kDocuments = {{5, 0, 256}, {256}, {1, 2, 3, 4, 255, 256}};

absl::Status WriteFile(FileSystem& files, const std::string& path, int64_t vocabulary,
                       const std::vector<std::vector<int32_t>>& documents) {
  FATHOM_ASSIGN_OR_RETURN(auto writer,
                          TokenFileWriter::Create(files, path, {"bytes", 99, vocabulary}));
  for (const auto& document : documents) {
    FATHOM_RETURN_IF_ERROR(writer->Append(document.data(), document.size()));
    FATHOM_RETURN_IF_ERROR(writer->EndDocument());
  }
  return writer->Finish();
}

void ExpectHolds(const std::string& path, int64_t vocabulary,
                 const std::vector<std::vector<int32_t>>& documents) {
  auto file = TokenFile::Open(PosixFileSystem(), path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<int32_t> all;
  ASSERT_EQ((*file)->documents(), documents.size());
  for (size_t i = 0; i < documents.size(); ++i) {
    all.insert(all.end(), documents[i].begin(), documents[i].end());
    EXPECT_EQ((*file)->DocumentEnd(i), all.size());
  }
  ASSERT_EQ((*file)->tokens(), all.size());
  EXPECT_EQ((*file)->vocabulary(), vocabulary);
  EXPECT_EQ((*file)->info().tokenizer, "bytes");
  EXPECT_EQ((*file)->info().tokenizer_hash, 99);
  EXPECT_TRUE((*file)->Verify().ok());
  for (int64_t begin = 0; begin <= all.size(); ++begin) {
    std::vector<int32_t> rest(all.size() - begin);
    (*file)->Read(begin, rest.size(), rest.data());
    EXPECT_EQ(rest, std::vector<int32_t>(all.begin() + begin, all.end()));
  }
}

TEST(TokenFileTest, RoundTripOfTwoByteTokens) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 257, kDocuments).ok());
  ExpectHolds(path, 257, kDocuments);
}

TEST(TokenFileTest, RoundTripOfFourByteTokens) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  const std::vector<std::vector<int32_t>> documents = {{65536, 3}, {65535}};
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 65537, documents).ok());
  ExpectHolds(path, 65537, documents);
}

TEST(TokenFileTest, LargestTokenOfTwoBytes) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 65536, {{65535}}).ok());
  ExpectHolds(path, 65536, {{65535}});
  EXPECT_EQ(ReadFile(PosixFileSystem(), path)->size(), 32 + 8 + 8 + 8 + 40);
}

TEST(TokenFileTest, OpensByPrefix) {
  const std::string directory = NewTestDirectory();
  ASSERT_TRUE(WriteFile(PosixFileSystem(), JoinPath(directory, "x.tokens"), 257, kDocuments).ok());
  ExpectHolds(JoinPath(directory, "x"), 257, kDocuments);
}

TEST(TokenFileTest, ManyTokensPassTheBuffer) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  std::vector<int32_t> tokens(700001);  // more than one buffer of 2-byte tokens
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i * 7919 % 50257;
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 50257, {tokens}).ok());
  auto file = TokenFile::Open(PosixFileSystem(), path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<int32_t> read(tokens.size());
  (*file)->Read(0, read.size(), read.data());
  EXPECT_EQ(read, tokens);
  EXPECT_TRUE((*file)->Verify().ok());
}

TEST(TokenFileTest, MissingEmptyAndForeignFiles) {
  const std::string directory = NewTestDirectory();
  const std::string path = JoinPath(directory, "x.tokens");
  const absl::Status missing = TokenFile::Open(PosixFileSystem(), path).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_NE(missing.ToString().find(path), std::string::npos);
  WriteTestFile(path, "");
  EXPECT_NE(TokenFile::Open(PosixFileSystem(), path).status().ToString().find("is empty"),
            std::string::npos);
  WriteTestFile(path, "some text that is long enough to be a head and a footer, and yet is none..");
  EXPECT_NE(TokenFile::Open(PosixFileSystem(), path).status().ToString().find("not a token file"),
            std::string::npos);
  EXPECT_FALSE(TokenFile::Open(PosixFileSystem(), directory).ok());
}

TEST(TokenFileTest, NewerVersionIsNamedBesideOurs) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 257, kDocuments).ok());
  std::string data = *ReadFile(PosixFileSystem(), path);
  data[8] = 9;
  WriteTestFile(path, data);
  const absl::Status status = TokenFile::Open(PosixFileSystem(), path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(status.ToString().find("version 9"), std::string::npos);
  EXPECT_NE(status.ToString().find("version 1"), std::string::npos);
}

TEST(TokenFileTest, EveryTruncationIsAnError) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 257, kDocuments).ok());
  const std::string data = *ReadFile(PosixFileSystem(), path);
  for (size_t size = 0; size < data.size(); ++size) {
    WriteTestFile(path, data.substr(0, size));
    EXPECT_FALSE(TokenFile::Open(PosixFileSystem(), path).ok()) << size;
  }
}

TEST(TokenFileTest, EveryFlippedBitIsFound) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 257, kDocuments).ok());
  const std::string data = *ReadFile(PosixFileSystem(), path);
  const size_t tokens_begin = 40, tokens_end = 40 + 20, padding_end = 40 + 24;
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    const size_t byte = bit / 8;
    if (byte >= tokens_end && byte < padding_end) continue;
    std::string damaged = data;
    damaged[byte] ^= 1 << bit % 8;
    WriteTestFile(path, damaged);
    auto file = TokenFile::Open(PosixFileSystem(), path);
    if (byte >= tokens_begin && byte < tokens_end) {
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_TRUE(absl::IsDataLoss((*file)->Verify())) << bit;
    } else {
      EXPECT_FALSE(file.ok()) << bit;
    }
  }
}

TEST(TokenFileTest, RefusesFilesWithoutDocuments) {
  // Written by hand, with a checksum that fits.
  using namespace token_format;
  std::string data(kMagic);
  for (const uint32_t field : {kVersion, 2u, 257u, 0u}) Store<uint32_t>(field, &data);
  Store<uint64_t>(0, &data);
  std::string footer;
  for (const uint64_t field : {uint64_t{0}, uint64_t{0}, Checksum("")}) {
    Store<uint64_t>(field, &footer);
  }
  Store<uint64_t>(FrameChecksum(data, "", footer), &footer);
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  WriteTestFile(path, data + footer + std::string(kEndMagic));
  EXPECT_NE(TokenFile::Open(PosixFileSystem(), path).status().ToString().find("no documents"),
            std::string::npos);
}

TEST(TokenFileTest, WriterRefusesTokensOutsideTheVocabulary) {
  const std::string directory = NewTestDirectory();
  for (const int32_t token : {257, -1}) {
    const absl::Status status =
        WriteFile(PosixFileSystem(), JoinPath(directory, "x.tokens"), 257, {{1, token}});
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  }
  EXPECT_TRUE(PosixFileSystem().List(directory)->empty());
}

TEST(TokenFileTest, ReadCheckedNamesFileAndOffset) {
  const std::string path = JoinPath(NewTestDirectory(), "x.tokens");
  ASSERT_TRUE(WriteFile(PosixFileSystem(), path, 257, kDocuments).ok());
  auto file = TokenFile::Open(PosixFileSystem(), path);
  std::vector<int32_t> tokens(4);
  EXPECT_TRUE(ReadChecked(**file, 4, 4, 5, tokens.data()).ok());
  const absl::Status status = ReadChecked(**file, 5, 4, 5, tokens.data());
  EXPECT_TRUE(absl::IsOutOfRange(status));
  EXPECT_NE(status.ToString().find(path + " holds token 255 at offset 8"), std::string::npos)
      << status;
}

TEST(TokenFileTest, FailedWritesLeaveNothingUnderTheName) {
  const std::string directory = NewTestDirectory();
  const std::string path = JoinPath(directory, "x.tokens");
  FailingFiles counting(-1);
  ASSERT_TRUE(WriteFile(counting, path, 257, kDocuments).ok());
  ASSERT_GT(counting.operations(), 5);
  for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
    ASSERT_TRUE(PosixFileSystem().RemoveAll(path).ok());
    FailingFiles files(fail_at);
    EXPECT_FALSE(WriteFile(files, path, 257, kDocuments).ok()) << fail_at;
    EXPECT_FALSE(PosixFileSystem().Exists(path)) << fail_at;
  }
}

}  // namespace
}  // namespace fathom
