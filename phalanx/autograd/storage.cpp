#include "phalanx/autograd/storage.h"

namespace phalanx {
namespace {

// The guard message can be taken back since LibTorch 2.12; where it cannot, it is not set at all.
template <class Storage>
void clear_guard(Storage* storage) {
  if constexpr (requires { storage->clear_data_ptr_access_error_msg_(); })
    storage->clear_data_ptr_access_error_msg_();
}

template <class Storage>
void set_guard(Storage* storage, const std::string& why) {
  if constexpr (requires { storage->clear_data_ptr_access_error_msg_(); })
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

}  // namespace

void attach_storage(const at::Tensor& tensor, const at::Tensor& memory) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  clear_guard(storage);
  auto* keep = new at::Tensor(memory);
  storage->set_data_ptr_noswap(at::DataPtr(
      memory.data_ptr(), keep, [](void* kept) { delete static_cast<at::Tensor*>(kept); },
      memory.device()));
  storage->set_nbytes(memory.nbytes());
}

void detach_storage(const at::Tensor& tensor, const std::string& why) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
  set_guard(storage, why);
}

}  // namespace phalanx
