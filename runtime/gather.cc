#include "runtime/gather.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "core/buffer.h"
#include "core/status.h"

namespace fathom {
namespace {

// A piece as other ranks know it: where it belongs, without its data. Sent as it lies in memory.
struct PieceHeader {
  char name[256] = {};
  int64_t dtype = 0;
  int64_t rank = 0;  // of the whole tensor
  int64_t dims[Shape::kMaximumRank] = {};
  int64_t part_dim = -1, part_begin = 0, part_end = 0;
  int64_t begin = 0, end = 0;

  Shape whole() const {
    Shape shape;
    for (int i = 0; i < rank; ++i) shape.Append(dims[i]);
    return shape;
  }
  TensorPart part() const {
    return {.dim = static_cast<int>(part_dim), .begin = part_begin, .end = part_end};
  }
  ElementRange range() const { return {begin, end}; }
};
static_assert(sizeof(PieceHeader) % sizeof(int64_t) == 0);

PieceHeader Describe(const TensorPiece& piece) {
  PieceHeader header;
  FATHOM_CHECK(piece.name.size() < sizeof(header.name)) << piece.name;
  std::copy(piece.name.begin(), piece.name.end(), header.name);
  header.dtype = static_cast<int64_t>(piece.data.dtype());
  header.rank = piece.whole.rank();
  for (int i = 0; i < piece.whole.rank(); ++i) header.dims[i] = piece.whole[i];
  header.part_dim = piece.part.dim;
  header.part_begin = piece.part.begin;
  header.part_end = piece.part.end;
  header.begin = piece.range.begin;
  header.end = piece.range.end;
  return header;
}

// Every rank's pieces, on every rank.
absl::StatusOr<std::vector<std::vector<PieceHeader>>> ExchangeHeaders(std::vector<PieceHeader> mine,
                                                                      Communicator& world,
                                                                      Stream& stream) {
  constexpr int64_t kWords = sizeof(PieceHeader) / sizeof(int64_t);
  int64_t my_words = mine.size() * kWords;
  mine.reserve(1);  // a view needs an address, also of nothing
  std::vector<int64_t> words(world.size());
  FATHOM_RETURN_IF_ERROR(world
                             .AllGather(Tensor(&my_words, DType::kInt64, {1}),
                                        Tensor(words.data(), DType::kInt64, {world.size()}), stream)
                             .Wait(stream));
  int64_t total = 0;
  for (const int64_t count : words) total += count;
  std::vector<PieceHeader> all(total / kWords);
  FATHOM_RETURN_IF_ERROR(world
                             .AllGather(Tensor(mine.data(), DType::kInt64, {my_words}),
                                        Tensor(all.data(), DType::kInt64, {total}), stream, words)
                             .Wait(stream));
  std::vector<std::vector<PieceHeader>> by_rank;
  auto next = all.begin();
  for (const int64_t count : words) {
    by_rank.emplace_back(next, next + count / kWords);
    next += count / kWords;
  }
  return by_rank;
}

// Copies a piece's data to its place in the whole tensor.
void PutInPlace(const PieceHeader& header, const char* data, char* whole) {
  const int64_t size = SizeOf(static_cast<DType>(header.dtype));
  VisitRuns(header.whole(), header.part(), header.range(),
            [&](int64_t to, int64_t from, int64_t count) {
              std::memcpy(whole + to * size, data + from * size, count * size);
            });
}

absl::Status CopyPiece(const TensorPiece& piece, Stream& stream, char* whole) {
  std::vector<char> data(piece.data.bytes());
  stream.CopyToHost(piece.data, data.data());
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  PutInPlace(Describe(piece), data.data(), whole);
  return absl::OkStatus();
}

absl::Status ReceivePiece(const PieceHeader& header, int from, Communicator& world, Stream& stream,
                          char* whole) {
  const DType dtype = static_cast<DType>(header.dtype);
  const int64_t elements = header.range().size();
  FATHOM_ASSIGN_OR_RETURN(const Buffer buffer,
                          Buffer::Allocate(stream.device(), elements * SizeOf(dtype)));
  const Tensor tensor = buffer.View(0, dtype, {elements});
  FATHOM_RETURN_IF_ERROR(world.Receive(tensor, from, stream).Wait(stream));
  std::vector<char> data(tensor.bytes());
  stream.CopyToHost(tensor, data.data());
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  PutInPlace(header, data.data(), whole);
  return absl::OkStatus();
}

}  // namespace

char* HostTensors::Add(const std::string& name, DType dtype, const Shape& shape) {
  std::vector<char>& bytes = storage_.emplace_back(shape.elements() * SizeOf(dtype));
  arrays_.push_back({.name = name, .dtype = dtype, .shape = shape, .data = bytes.data()});
  return bytes.data();
}

absl::Status GatherTensors(const std::vector<TensorPiece>& pieces, RankGroups& groups,
                           Stream& stream, HostTensors* out) {
  Communicator& world = groups.world();
  if (world.size() == 1) {
    std::map<std::string, char*> wholes;
    for (const TensorPiece& piece : pieces) {
      auto [whole, is_new] = wholes.try_emplace(piece.name, nullptr);
      if (is_new) whole->second = out->Add(piece.name, piece.data.dtype(), piece.whole);
      FATHOM_RETURN_IF_ERROR(CopyPiece(piece, stream, whole->second));
    }
    return absl::OkStatus();
  }
  // All ranks send in the order of names, and rank 0 receives in it.
  std::vector<const TensorPiece*> sorted;
  for (const TensorPiece& piece : pieces) sorted.push_back(&piece);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TensorPiece* a, const TensorPiece* b) { return a->name < b->name; });
  std::vector<PieceHeader> headers;
  for (const TensorPiece* piece : sorted) headers.push_back(Describe(*piece));
  FATHOM_ASSIGN_OR_RETURN(const auto by_rank, ExchangeHeaders(std::move(headers), world, stream));
  if (!groups.first()) {
    for (const TensorPiece* piece : sorted) {
      FATHOM_RETURN_IF_ERROR(world.Send(piece->data, 0, stream).Wait(stream));
    }
    return absl::OkStatus();
  }
  struct Place {
    int rank;
    size_t piece;
  };
  std::map<std::string, std::vector<Place>> tensors;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (size_t i = 0; i < by_rank[rank].size(); ++i) {
      tensors[by_rank[rank][i].name].push_back({rank, i});
    }
  }
  for (const auto& [name, places] : tensors) {
    const PieceHeader& any = by_rank[places[0].rank][places[0].piece];
    char* whole = out->Add(name, static_cast<DType>(any.dtype), any.whole());
    for (const auto& [rank, i] : places) {
      FATHOM_RETURN_IF_ERROR(rank == 0
                                 ? CopyPiece(*sorted[i], stream, whole)
                                 : ReceivePiece(by_rank[rank][i], rank, world, stream, whole));
    }
  }
  return absl::OkStatus();
}

}  // namespace fathom
