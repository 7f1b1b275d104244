#include "runtime/gather.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "core/buffer.h"
#include "core/status.h"

namespace fathom {

struct TensorGathering::Header {
  char name[256] = {};
  int64_t dtype = 0;
  int64_t rank = 0;  // of the whole tensor
  int64_t dims[Shape::kMaximumRank] = {};
  int64_t part_dim = -1, part_begin = 0, part_end = 0;
  int64_t begin = 0, end = 0;

  explicit Header(const TensorPiece& piece)
      : dtype(static_cast<int64_t>(piece.data.dtype())),
        rank(piece.whole.rank()),
        part_dim(piece.part.dim),
        part_begin(piece.part.begin),
        part_end(piece.part.end),
        begin(piece.range.begin),
        end(piece.range.end) {
    FATHOM_CHECK(piece.name.size() < sizeof(name)) << piece.name;
    std::copy(piece.name.begin(), piece.name.end(), name);
    for (int i = 0; i < piece.whole.rank(); ++i) dims[i] = piece.whole[i];
  }
  Header() = default;

  DType element_type() const { return static_cast<DType>(dtype); }
  int64_t elements() const { return end - begin; }
  Shape whole() const {
    Shape shape;
    for (int i = 0; i < rank; ++i) shape.Append(dims[i]);
    return shape;
  }
  // Copies the piece's data to its place in the whole tensor.
  void PutInPlace(const char* data, char* whole_data) const {
    const int64_t size = SizeOf(element_type());
    const TensorPart part{static_cast<int>(part_dim), part_begin, part_end};
    VisitRuns(whole(), part, {begin, end}, [&](int64_t to, int64_t from, int64_t count) {
      std::memcpy(whole_data + to * size, data + from * size, count * size);
    });
  }
};

TensorGathering::TensorGathering(RankGroups& groups, Stream& stream)
    : groups_(groups), stream_(stream) {}

TensorGathering::~TensorGathering() = default;

absl::StatusOr<std::unique_ptr<TensorGathering>> TensorGathering::Create(
    const std::vector<TensorPiece>& pieces, RankGroups& groups, Stream& stream) {
  std::unique_ptr<TensorGathering> gathering(new TensorGathering(groups, stream));
  for (const TensorPiece& piece : pieces) gathering->pieces_.push_back(&piece);
  std::stable_sort(gathering->pieces_.begin(), gathering->pieces_.end(),
                   [](const TensorPiece* a, const TensorPiece* b) { return a->name < b->name; });
  std::vector<Header> mine;
  for (const TensorPiece* piece : gathering->pieces_) mine.emplace_back(*piece);
  FATHOM_RETURN_IF_ERROR(gathering->ExchangeHeaders(std::move(mine)));
  if (!groups.first()) return gathering;

  std::map<std::string, std::vector<Place>> places;
  for (size_t rank = 0; rank < gathering->headers_.size(); ++rank) {
    const std::vector<Header>& headers = gathering->headers_[rank];
    for (size_t i = 0; i < headers.size(); ++i) {
      places[headers[i].name].push_back({static_cast<int>(rank), i});
    }
  }
  for (auto& [name, of_tensor] : places) {
    const Header& any = gathering->headers_[of_tensor[0].rank][of_tensor[0].piece];
    gathering->arrays_.push_back(
        {.name = name, .dtype = any.element_type(), .shape = any.whole(), .data = nullptr});
    gathering->places_.push_back(std::move(of_tensor));
  }
  return gathering;
}

absl::Status TensorGathering::ExchangeHeaders(std::vector<Header> mine) {
  static_assert(sizeof(Header) % sizeof(int64_t) == 0);
  constexpr int64_t kWords = sizeof(Header) / sizeof(int64_t);
  Communicator& world = groups_.world();
  int64_t my_words = mine.size() * kWords;
  mine.reserve(1);  // a view needs an address, also of nothing
  std::vector<int64_t> words(world.size());
  FATHOM_RETURN_IF_ERROR(world
                             .AllGather(Tensor(&my_words, DType::kInt64, {1}),
                                        Tensor(words.data(), DType::kInt64, {world.size()}),
                                        stream_)
                             .Wait(stream_));
  int64_t total = 0;
  for (const int64_t count : words) total += count;
  std::vector<Header> all(total / kWords);
  all.reserve(1);
  FATHOM_RETURN_IF_ERROR(world
                             .AllGather(Tensor(mine.data(), DType::kInt64, {my_words}),
                                        Tensor(all.data(), DType::kInt64, {total}), stream_, words)
                             .Wait(stream_));
  auto next = all.begin();
  for (const int64_t count : words) {
    headers_.emplace_back(next, next + count / kWords);
    next += count / kWords;
  }
  return absl::OkStatus();
}

absl::StatusOr<const void*> TensorGathering::Load(size_t i) {
  whole_.resize(arrays_[i].bytes());
  for (const Place& place : places_[i]) {
    FATHOM_RETURN_IF_ERROR(FetchPiece(place, whole_.data()));
  }
  return whole_.data();
}

absl::Status TensorGathering::FetchPiece(const Place& place, char* whole) {
  const Header& header = headers_[place.rank][place.piece];
  const DType dtype = header.element_type();
  Buffer buffer;
  Tensor tensor;
  if (place.rank == 0) {
    tensor = pieces_[place.piece]->data;
  } else {
    FATHOM_ASSIGN_OR_RETURN(buffer,
                            Buffer::Allocate(stream_.device(), header.elements() * SizeOf(dtype)));
    tensor = buffer.View(0, dtype, {header.elements()});
    FATHOM_RETURN_IF_ERROR(groups_.world().Receive(tensor, place.rank, stream_).Wait(stream_));
  }
  std::vector<char> data(tensor.bytes());
  stream_.CopyToHost(tensor, data.data());
  FATHOM_RETURN_IF_ERROR(stream_.Synchronize());
  header.PutInPlace(data.data(), whole);
  return absl::OkStatus();
}

absl::Status TensorGathering::Send() {
  for (const TensorPiece* piece : pieces_) {
    FATHOM_RETURN_IF_ERROR(groups_.world().Send(piece->data, 0, stream_).Wait(stream_));
  }
  return absl::OkStatus();
}

char* HostTensors::Add(const std::string& name, DType dtype, const Shape& shape) {
  std::vector<char>& bytes = storage_.emplace_back(shape.elements() * SizeOf(dtype));
  arrays_.push_back({.name = name, .dtype = dtype, .shape = shape, .data = bytes.data()});
  return bytes.data();
}

absl::Status GatherTensors(const std::vector<TensorPiece>& pieces, RankGroups& groups,
                           Stream& stream, HostTensors* out) {
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<TensorGathering> gathering,
                          TensorGathering::Create(pieces, groups, stream));
  if (!groups.first()) return gathering->Send();
  for (size_t i = 0; i < gathering->arrays().size(); ++i) {
    const NamedArray& array = gathering->arrays()[i];
    FATHOM_ASSIGN_OR_RETURN(const void* data, gathering->Load(i));
    char* whole = out->Add(array.name, array.dtype, array.shape);
    if (array.bytes() > 0) std::memcpy(whole, data, array.bytes());
  }
  return absl::OkStatus();
}

}  // namespace fathom
