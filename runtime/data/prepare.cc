#include "runtime/data/prepare.h"

#include <chrono>
#include <memory>
#include <utility>

#include "core/status.h"
#include "runtime/data/bpe_trainer.h"
#include "runtime/data/document_encoder.h"
#include "runtime/data/input_parts.h"
#include "runtime/data/megatron_files.h"
#include "runtime/data/ordered_work.h"
#include "runtime/data/token_file.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

absl::StatusOr<std::unique_ptr<TokenWriter>> MakeWriter(FileSystem& files,
                                                        const Tokenizer& tokenizer,
                                                        const std::string& output,
                                                        TokenFormat format) {
  const TokenFileInfo info = {tokenizer.name(), tokenizer.hash(), tokenizer.vocabulary()};
  if (format == TokenFormat::kMegatron) return MegatronWriter::Create(files, output, info);
  return TokenFileWriter::Create(files, output, info);
}

InputParts::Options PartOptions(const PrepareOptions& options) {
  InputParts::Options parts;
  parts.json_lines = options.json_lines;
  parts.begin_byte = options.begin_byte;
  parts.end_byte = options.end_byte;
  return parts;
}

// A part on its way from the input to the file, and how much had been read with it.
struct ReadPart {
  InputPart part;
  int64_t stored_bytes = 0;
};
struct WrittenPart {
  EncodedPart encoded;
  int64_t stored_bytes = 0;
};

// Writes parts, in order, and counts.
class PartWriter {
 public:
  PartWriter(TokenWriter& writer, int64_t stored_total, const PrepareOptions& options)
      : writer_(writer), options_(options) {
    stats_.stored_total = stored_total;
  }

  absl::Status Write(const WrittenPart& part) {
    const std::vector<int32_t>& tokens = part.encoded.tokens;
    int64_t begin = 0;
    for (const int64_t end : part.encoded.document_ends) {
      FATHOM_RETURN_IF_ERROR(writer_.Append(tokens.data() + begin, end - begin));
      FATHOM_RETURN_IF_ERROR(writer_.EndDocument());
      begin = end;
    }
    FATHOM_RETURN_IF_ERROR(writer_.Append(tokens.data() + begin, tokens.size() - begin));
    stats_.text_bytes += part.encoded.text_bytes;
    stats_.stored_bytes = part.stored_bytes;
    if (options_.progress) options_.progress(stats());
    return absl::OkStatus();
  }

  PrepareStats stats() const {
    PrepareStats stats = stats_;
    stats.tokens = writer_.tokens();
    stats.documents = writer_.documents();
    stats.checksum = writer_.tokens_checksum();
    stats.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return stats;
  }

 private:
  TokenWriter& writer_;
  const PrepareOptions& options_;
  const Clock::time_point start_ = Clock::now();
  PrepareStats stats_;
};

}  // namespace

absl::StatusOr<PrepareStats> PrepareTokens(FileSystem& files,
                                           const std::vector<std::string>& inputs,
                                           const Tokenizer& tokenizer, const std::string& output,
                                           const PrepareOptions& options) {
  if (inputs.empty()) return absl::InvalidArgumentError("no text was given to prepare");
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<TokenWriter> writer,
                          MakeWriter(files, tokenizer, output, options.format));
  InputParts::Options part_options = PartOptions(options);
  part_options.last_cut = [&](std::string_view text) { return tokenizer.LastCut(text); };
  InputParts parts(files, inputs, part_options);
  PartWriter part_writer(*writer, parts.stored_total(), options);
  std::vector<std::unique_ptr<DocumentEncoder>> encoders;
  for (int thread = 0; thread < options.threads; ++thread) {
    encoders.push_back(std::make_unique<DocumentEncoder>(tokenizer, options.field));
  }

  OrderedWork<ReadPart, WrittenPart> work(
      {.read = [&](ReadPart* read) -> absl::StatusOr<bool> {
         FATHOM_ASSIGN_OR_RETURN(const bool more, parts.Next(&read->part));
         read->stored_bytes = parts.stored_bytes();
         return more;
       },
       .work = [&](int thread, ReadPart read) -> absl::StatusOr<WrittenPart> {
         WrittenPart result{.stored_bytes = read.stored_bytes};
         FATHOM_ASSIGN_OR_RETURN(result.encoded, encoders[thread]->Encode(read.part));
         return result;
       },
       .write = [&](WrittenPart part) { return part_writer.Write(part); }});
  FATHOM_RETURN_IF_ERROR(work.Run(options.threads));
  if (writer->documents() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(inputs[0], inputs.size() > 1 ? " and the other inputs hold" : " holds",
                     " no documents: there is no line of JSON"));
  }
  FATHOM_RETURN_IF_ERROR(writer->Finish());
  return part_writer.stats();
}

absl::StatusOr<BpeVocabulary> TrainVocabulary(FileSystem& files,
                                              const std::vector<std::string>& inputs,
                                              int64_t vocabulary, const PrepareOptions& options) {
  InputParts::Options part_options = PartOptions(options);
  part_options.last_cut = [](std::string_view text) {
    return LastSafeCut(SplitPattern::kGpt2, text, /*at_spaces=*/false);
  };
  InputParts parts(files, inputs, part_options);
  JsonLines lines(options.field);
  BpeTrainer trainer;
  const JsonLines::Uses uses = {
      .text =
          [&](std::string_view text) {
            trainer.Add(text);
            return absl::OkStatus();
          },
      .ids =
          [&](const std::vector<int64_t>&) {
            return absl::InvalidArgumentError(
                absl::StrCat("field \"", options.field,
                             "\" holds token ids, but a vocabulary can only be trained on text"));
          }};
  InputPart part;
  while (true) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, parts.Next(&part));
    if (!more) break;
    if (part.first_line == 0) {
      trainer.Add(part.text());
    } else {
      FATHOM_RETURN_IF_ERROR(lines.ForEach(part, uses));
    }
  }
  return trainer.Train(vocabulary);
}

}  // namespace fathom
