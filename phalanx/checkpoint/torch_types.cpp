#include "phalanx/checkpoint/torch_types.h"

#include <set>

#include "phalanx/base/text.h"

namespace phalanx {
namespace {

constexpr std::string_view torch_prefix = "torch.";

std::string_view after_torch(std::string_view name) {
  return name.starts_with(torch_prefix) ? name.substr(torch_prefix.size()) : "";
}

const std::set<std::string_view> data_names = {"collections.OrderedDict",
                                               "collections.defaultdict",
                                               "collections.Counter",
                                               "collections.deque",
                                               "builtins.dict",
                                               "builtins.list",
                                               "builtins.set",
                                               "builtins.frozenset",
                                               "builtins.bytearray",
                                               "builtins.complex",
                                               "__builtin__.dict",
                                               "__builtin__.list",
                                               "__builtin__.set",
                                               "__builtin__.frozenset",
                                               "__builtin__.bytearray",
                                               "__builtin__.complex",
                                               "_codecs.encode",
                                               "argparse.Namespace",
                                               "pathlib.PosixPath",
                                               "pathlib.PurePosixPath",
                                               "pathlib.WindowsPath",
                                               "pathlib._local.PosixPath",
                                               "numpy.dtype",
                                               "numpy.ndarray",
                                               "numpy.core.multiarray.scalar",
                                               "numpy.core.multiarray._reconstruct",
                                               "numpy._core.multiarray.scalar",
                                               "numpy._core.multiarray._reconstruct",
                                               "torch.Size",
                                               "torch.Tensor",
                                               "torch.device",
                                               "torch.nn.parameter.Parameter",
                                               "torch.serialization._get_layout",
                                               "torch.storage.UntypedStorage",
                                               "torch.storage.TypedStorage",
                                               "torch._tensor._rebuild_from_type_v2"};

// Element types that PyTorch has, whether or not we read them.
bool is_element_type(std::string_view name) {
  for (const std::string_view begin : {"float", "bfloat", "int", "uint", "bool", "complex", "half",
                                       "double", "qint", "quint", "bits"}) {
    if (!name.starts_with(begin)) continue;
    const auto rest = name.substr(begin.size());
    return rest.find_first_not_of("0123456789_abcdefghijklmnopqrstuvwxyz") ==
           std::string_view::npos;
  }
  return false;
}

}  // namespace

std::optional<Dtype> dtype_of_torch(std::string_view name) {
  return dtype_named(&DtypeRow::name, after_torch(name));
}

std::optional<Dtype> dtype_of_storage(std::string_view name) {
  return dtype_named(&DtypeRow::storage, after_torch(name));
}

std::string readable_dtypes() { return join(dtype_names(&DtypeRow::name)) + " are read"; }

std::vector<int64_t> torch_size(const Pickle& pickle, Pickle::Ref ref, std::string_view what) {
  if (pickle.made_by(ref) != "torch.Size") return pickle.integers(ref, what);
  const auto& arguments = pickle.tuple(pickle.arguments(ref), what);
  return arguments.empty() ? std::vector<int64_t>() : pickle.integers(arguments[0], what);
}

bool is_torch_data(std::string_view global) {
  const auto own = after_torch(global);
  return data_names.contains(global) || is_element_type(own) ||
         global.starts_with("torch._utils._rebuild_") ||
         (own.ends_with("Storage") && own.find('.') == std::string_view::npos);
}

}  // namespace phalanx
