#include "runtime/data/open_tokens.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/data/llmc_file.h"
#include "runtime/data/megatron_files.h"
#include "runtime/data/token_file.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

using Tokens = std::vector<int32_t>;

template <class T>
std::string Bytes(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  return bytes;
}

// What Megatron-LM's writer makes of the documents [1, 2, 300], [4] and [] (the last one empty),
// the first of them in two sequences.
std::string Idx(uint8_t code, int64_t width) {
  std::string idx("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17);
  idx += static_cast<char>(code);
  idx += Bytes<int64_t>({3, 4});
  idx += Bytes<int32_t>({2, 1, 1});
  idx += Bytes<int64_t>({0, 2 * width, 3 * width});
  idx += Bytes<int64_t>({0, 2, 3, 3});
  return idx;
}

std::string Llmc(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  std::string head = Bytes<int32_t>({magic, version, count});
  head.resize(1024);
  return head + tokens;
}

class OpenTokensTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return JoinPath(directory_, name); }
  absl::StatusOr<std::unique_ptr<TokenSource>> Open(const std::string& name) {
    return OpenTokens(PosixFileSystem(), Path(name));
  }
  void ExpectTokens(const std::string& name, const Tokens& expected, const Tokens& ends) {
    const auto source = Open(name);
    ASSERT_TRUE(source.ok()) << source.status();
    Tokens tokens((*source)->tokens());
    (*source)->Read(0, tokens.size(), tokens.data());
    EXPECT_EQ(tokens, expected) << name;
    Tokens found;
    for (int64_t i = 0; i < (*source)->documents(); ++i) {
      found.push_back((*source)->DocumentEnd(i));
    }
    EXPECT_EQ(found, ends) << name;
    int32_t last;
    (*source)->Read(expected.size() - 1, 1, &last);
    EXPECT_EQ(last, expected.back());
  }
  // Opening must fail, in one sentence that has `what` in it.
  void ExpectRefused(const std::string& name, const std::string& what) {
    const absl::Status status = Open(name).status();
    EXPECT_FALSE(status.ok()) << what;
    EXPECT_NE(status.ToString().find(what), std::string::npos) << status << " lacks " << what;
    EXPECT_NE(status.ToString().find(directory_), std::string::npos) << status;
  }
  void WriteMegatron(const std::string& idx, const std::string& bin) {
    WriteTestFile(Path("m.idx"), idx);
    WriteTestFile(Path("m.bin"), bin);
  }

  std::string directory_ = NewTestDirectory();
};

TEST_F(OpenTokensTest, Megatron) {
  const Tokens tokens = {1, 2, 300, 4}, ends = {3, 4, 4};
  WriteMegatron(Idx(8, 2), Bytes<uint16_t>({1, 2, 300, 4}));
  for (const char* name : {"m", "m.bin", "m.idx"}) ExpectTokens(name, tokens, ends);
  WriteMegatron(Idx(4, 4), Bytes<int32_t>({1, 2, 300, 4}));
  ExpectTokens("m", tokens, ends);
  WriteMegatron(Idx(4, 4) + std::string(3, '\1'), Bytes<int32_t>({1, 2, 300, 4}));  // modes
  ExpectTokens("m", tokens, ends);
}

TEST_F(OpenTokensTest, Llmc) {
  WriteTestFile(Path("a.bin"), Llmc(20240520, 1, 3, Bytes<uint16_t>({7, 65535, 9})));
  WriteTestFile(Path("b.bin"), Llmc(20240801, 7, 2, Bytes<uint32_t>({70000, 8})));
  WriteTestFile(Path("other"), Llmc(20240801, 7, 1, Bytes<uint32_t>({5})));
  for (const char* name : {"a", "a.bin"}) ExpectTokens(name, {7, 65535, 9}, {3});
  ExpectTokens("b.bin", {70000, 8}, {2});
  ExpectTokens("other", {5}, {1});
}

void WriteAll(TokenWriter& writer, const std::vector<Tokens>& documents) {
  for (const Tokens& document : documents) {
    ASSERT_TRUE(writer.Append(document.data(), document.size()).ok());
    ASSERT_TRUE(writer.EndDocument().ok());
  }
  ASSERT_TRUE(writer.Finish().ok());
}

TEST_F(OpenTokensTest, WhatTheWritersWrite) {
  FileSystem& files = PosixFileSystem();
  for (const int64_t vocabulary : {400, 65499, 65500, 100000}) {
    const int32_t last = vocabulary - 1;
    const std::vector<Tokens> documents = {{1, 2, last}, {0}, {3, 3}};
    const TokenFileInfo info = {"test", 17, vocabulary};
    WriteAll(**MegatronWriter::Create(files, Path("w"), info), documents);
    WriteAll(**TokenFileWriter::Create(files, Path("f.tokens"), info), documents);
    for (const char* name : {"w", "f"}) ExpectTokens(name, {1, 2, last, 0, 3, 3}, {3, 4, 6});
    EXPECT_EQ(files.OpenForRead(Path("w.bin")).value()->size(), vocabulary < 65500 ? 12 : 24);
    EXPECT_EQ((*Open("f"))->tokenizer_hash(), 17);
    EXPECT_EQ((*Open("w"))->tokenizer_hash(), 0);
  }
  // Byte for byte what the real writer makes of these documents.
  WriteAll(**MegatronWriter::Create(files, Path("x"), {"test", 17, 500}), {{1, 2, 300}, {4}});
  EXPECT_EQ(*ReadFile(files, Path("x.bin")), Bytes<uint16_t>({1, 2, 300, 4}));
  EXPECT_EQ(*ReadFile(files, Path("x.idx")),
            std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x8", 18) + Bytes<int64_t>({2, 3}) +
                Bytes<int32_t>({3, 1}) + Bytes<int64_t>({0, 6}) + Bytes<int64_t>({0, 1, 2}));
}

TEST_F(OpenTokensTest, MegatronWriterLeavesNoHalfPair) {
  FileSystem& files = PosixFileSystem();
  const TokenFileInfo info = {"test", 17, 70000};
  WriteAll(**MegatronWriter::Create(files, Path("w"), info), {{1}});
  const Tokens tokens = {70000};
  {
    auto writer = *MegatronWriter::Create(files, Path("w"), info);
    const absl::Status status = writer->Append(tokens.data(), 1);
    EXPECT_TRUE(absl::IsOutOfRange(status));
    EXPECT_NE(status.ToString().find("token 70000 at offset 0 "), std::string::npos) << status;
  }
  ExpectTokens("w", {1}, {1});
  FailingFiles counting(-1);
  WriteAll(**MegatronWriter::Create(counting, Path("n"), info), {{1}, {2}});
  for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
    FailingFiles failing(fail_at);
    auto writer = MegatronWriter::Create(failing, Path("w"), info);
    if (!writer.ok()) continue;
    absl::Status status = (*writer)->Append(tokens.data(), 0);
    const int32_t token = 2;
    status.Update((*writer)->Append(&token, 1));
    status.Update((*writer)->EndDocument());
    status.Update((*writer)->Finish());
    EXPECT_FALSE(status.ok()) << fail_at;
    writer->reset();
    // Either the older pair, or nothing that could be taken for one.
    const auto source = Open("w");
    if (source.ok()) ExpectTokens("w", {1}, {1});
  }
}

TEST_F(OpenTokensTest, DamagedMegatronIsRefused) {
  const std::string idx = Idx(8, 2), bin = Bytes<uint16_t>({1, 2, 300, 4});
  const auto with = [&idx](size_t at, const std::string& bytes) {
    std::string changed = idx;
    return changed.replace(at, bytes.size(), bytes);
  };
  const struct {
    std::string idx, bin, message;
  } cases[] = {
      {"", bin, "is not the index of a Megatron data set"},
      {with(0, "x"), bin, "is not the index of a Megatron data set"},
      {idx.substr(0, 30), bin, "is truncated inside its head"},
      {with(9, Bytes<int64_t>({2})), bin, "has version 2"},
      {with(17, "\5"), bin, "type code 5"},
      {with(18, Bytes<int64_t>({-1})), bin, "too few for its 18446744073709551615 sequences"},
      {with(18, Bytes<int64_t>({4})), bin, "does not fit its 4 sequences"},
      {with(26, Bytes<int64_t>({1})), bin, "does not fit its 3 sequences and 1 document"},
      {idx.substr(0, 18) + Bytes<int64_t>({0, 1, 0}), bin, "holds no documents"},
      {idx.substr(0, idx.size() - 1), bin, "does not fit"},
      {with(34, Bytes<int32_t>({-1})), bin, "sequence 0 has -1 tokens"},
      {with(34, Bytes<int32_t>({3})), bin, "sequence 1 has 1 tokens at byte 4, where byte 6"},
      {with(54, Bytes<int64_t>({-4})), bin, "sequence 1 has 1 tokens at byte -4"},
      {with(70, Bytes<int64_t>({1})), bin, "document boundary 0 lies at sequence 1"},
      {with(78, Bytes<int64_t>({4})), bin, "document boundary 1 lies at sequence 4 of 3"},
      {with(86, Bytes<int64_t>({1})), bin, "document boundary 2 lies at sequence 1"},
      {with(94, Bytes<int64_t>({4})), bin, "document boundary 3"},
      {with(78, Bytes<int64_t>({1, 1, 1})), bin, "last document ends at sequence 1 of 3"},
      {idx, bin.substr(0, 7), "does not match"},
      {idx, bin + "x", "does not match"},
      {idx, "", "does not match"},
  };
  for (const auto& damaged : cases) {
    WriteMegatron(damaged.idx, damaged.bin);
    ExpectRefused("m", damaged.message);
  }
  WriteTestFile(Path("lonely.idx"), idx);
  EXPECT_TRUE(absl::IsNotFound(Open("lonely").status()));
  WriteTestFile(Path("lonely.bin"), bin);
  ASSERT_TRUE(PosixFileSystem().RemoveAll(Path("lonely.idx")).ok());
  ExpectRefused("lonely", "lonely.idx, which would make it Megatron's, is missing");
  WriteTestFile(Path("misnamed"), idx);
  ExpectRefused("misnamed", "should end in .idx");
}

TEST_F(OpenTokensTest, DamagedLlmcIsRefused) {
  const std::string tokens = Bytes<uint16_t>({1, 2});
  const std::pair<std::string, std::string> cases[] = {
      {Llmc(20240520, 1, 2, tokens).substr(0, 1000), "is truncated inside its head"},
      {Llmc(20240520, 7, 2, tokens), "has version 7"},
      {Llmc(20240801, 1, 1, tokens), "has version 1"},
      {Llmc(20240520, 1, 0, ""), "has a count of 0 tokens"},
      {Llmc(20240520, 1, -2, tokens), "has a count of -2 tokens"},
      {Llmc(20240520, 1, 3, tokens), "has 1028 bytes, where its 3 tokens take 1030"},
      {Llmc(20240520, 1, 1, tokens), "has 1028 bytes, where its 1 tokens take 1026"},
      {Llmc(20240521, 1, 2, tokens), "is no token file of llm.c"},
      {"", "is no token file of llm.c"},
  };
  for (const auto& [data, message] : cases) {
    WriteTestFile(Path("l.bin"), data);
    ExpectRefused("l", message);
  }
  EXPECT_TRUE(absl::IsNotFound(Open("missing").status()));
  EXPECT_TRUE(absl::IsNotFound(OpenTokens(PosixFileSystem(), directory_).status()));
}

// Files in memory, for opening alone.
class MemoryFiles final : public FileSystem {
 public:
  std::map<std::string, std::string> contents;

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    if (!Exists(path)) return absl::NotFoundError(path);
    return std::make_unique<File>(contents[path]);
  }
  bool Exists(const std::string& path) override { return contents.count(path) > 0; }
  bool IsDirectory(const std::string&) override { return false; }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::Status CreateDirectories(const std::string&) override { return absl::OkStatus(); }
  absl::Status SyncDirectory(const std::string&) override { return absl::OkStatus(); }
  absl::Status Rename(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::Status Truncate(const std::string&, int64_t) override { return absl::OkStatus(); }
  absl::Status RemoveAll(const std::string&) override { return absl::OkStatus(); }

 private:
  class File final : public ReadableFile {
   public:
    // The bytes have an allocation of their own and of their size, so that the address sanitizer
    // sees a read behind their end.
    explicit File(const std::string& bytes) : bytes_(bytes.begin(), bytes.end()) {}
    int64_t size() const override { return bytes_.size(); }
    std::string_view contents() const override { return {bytes_.data(), bytes_.size()}; }

   private:
    std::vector<char> bytes_;
  };
};

// Files whose first bytes (and, for ours, whose last) were changed at random either open, and can
// then be read from end to end, or are refused. Meant for the address sanitizer.
TEST_F(OpenTokensTest, TenThousandDamagedHeadsOfEachFormat) {
  WriteAll(**TokenFileWriter::Create(PosixFileSystem(), Path("f.tokens"), {"test", 17, 400}),
           {{1, 2, 300}, {4}});
  const std::string own = *ReadFile(PosixFileSystem(), Path("f.tokens"));
  const struct {
    std::string name, data;
    size_t head;
  } formats[] = {{"f.tokens", own, own.size()},
                 {"m.idx", Idx(8, 2), Idx(8, 2).size()},
                 {"a.bin", Llmc(20240520, 1, 3, Bytes<uint16_t>({7, 8, 9})), 16},
                 {"b.bin", Llmc(20240801, 7, 2, Bytes<uint32_t>({7, 8})), 16}};
  MemoryFiles files;
  files.contents["m.bin"] = Bytes<uint16_t>({1, 2, 300, 4});
  std::mt19937 random(29);
  for (const auto& format : formats) {
    int64_t refused = 0;
    for (int i = 0; i < 10000; ++i) {
      std::string data = format.data;
      for (int changes = 1 + random() % 4; changes > 0; --changes) {
        const size_t at = random() % format.head;
        const uint32_t kind = random() % 4;
        data[at] = kind == 0 ? 0 : kind == 1 ? '\xff' : kind == 2 ? data[at] + 1 : random();
      }
      if (random() % 8 == 0) data.resize(random() % (data.size() + 1));
      files.contents[format.name] = data;
      const auto source = OpenTokens(files, format.name);
      refused += !source.ok();
      if (!source.ok()) continue;
      Tokens tokens((*source)->tokens());
      (*source)->Read(0, tokens.size(), tokens.data());
      for (int64_t d = 0; d < (*source)->documents(); ++d) {
        ASSERT_LE((*source)->DocumentEnd(d), (*source)->tokens());
      }
    }
    EXPECT_GT(refused, 5000) << format.name;
  }
}

TEST_F(OpenTokensTest, AFileThatChangesIsRefusedWhenItIsRead) {
  const std::string bin = Bytes<uint16_t>({1, 2, 300, 4});
  WriteMegatron(Idx(8, 2), bin);
  WriteTestFile(Path("a.bin"), Llmc(20240520, 1, 3, Bytes<uint16_t>({7, 8, 9})));
  WriteAll(**TokenFileWriter::Create(PosixFileSystem(), Path("f.tokens"), {"test", 17, 400}),
           {{1, 2}});
  for (const auto& [name, file] : {std::pair{"m", "m.bin"}, std::pair{"m", "m.idx"},
                                   std::pair{"a", "a.bin"}, std::pair{"f", "f.tokens"}}) {
    const std::string before = *ReadFile(PosixFileSystem(), Path(file));
    const auto source = Open(name);
    ASSERT_TRUE(source.ok()) << source.status();
    int32_t token;
    EXPECT_TRUE(ReadChecked(**source, 0, 1, 400, &token).ok());
    WriteTestFile(Path(file), before.substr(0, 1));
    const absl::Status status = ReadChecked(**source, 0, 1, 400, &token);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.ToString().find(Path(file) + " was changed"), std::string::npos) << status;
    WriteTestFile(Path(file), before);
  }
  // One that is replaced by another of its name is still there for who has opened it.
  const auto source = Open("f");
  WriteAll(**TokenFileWriter::Create(PosixFileSystem(), Path("f.tokens"), {"test", 17, 400}),
           {{3, 4, 5}});
  int32_t token;
  EXPECT_TRUE(ReadChecked(**source, 0, 1, 400, &token).ok());
  EXPECT_EQ(token, 1);
}

TEST_F(OpenTokensTest, AnotherTokenizerIsRefused) {
  WriteAll(**TokenFileWriter::Create(PosixFileSystem(), Path("f.tokens"), {"test", 17, 400}),
           {{1, 2}});
  const auto source = Open("f");
  ASSERT_TRUE(source.ok());
  EXPECT_TRUE(CheckTokenizer(**source, 17, "x").ok());
  EXPECT_TRUE(CheckTokenizer(**source, 0, "x").ok());
  const absl::Status status = CheckTokenizer(**source, 18, "x");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.ToString().find(Path("f.tokens")), std::string::npos) << status;
  WriteMegatron(Idx(8, 2), Bytes<uint16_t>({1, 2, 300, 4}));
  EXPECT_TRUE(CheckTokenizer(**Open("m"), 18, "x").ok());
}

}  // namespace
}  // namespace fathom
