# LibTorch from the wheel, without find_package(Torch), which wants a CUDA toolkit for CUDA wheels.
if(NOT PHALANX_TORCH)
  file(GLOB found ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  set(PHALANX_TORCH "${found}" CACHE PATH "the torch folder of the wheel" FORCE)
endif()
if(NOT EXISTS "${PHALANX_TORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch: no libtorch_cpu.so under '${PHALANX_TORCH}'; run tools/install.sh "
    "or set -DPHALANX_TORCH=<site-packages>/torch")
endif()
add_library(torch_c10 SHARED IMPORTED)
set_target_properties(torch_c10 PROPERTIES IMPORTED_LOCATION ${PHALANX_TORCH}/lib/libc10.so)
add_library(torch_cpu SHARED IMPORTED)
set_target_properties(torch_cpu PROPERTIES IMPORTED_LOCATION ${PHALANX_TORCH}/lib/libtorch_cpu.so)
add_library(torch_wheel INTERFACE)
target_include_directories(torch_wheel SYSTEM INTERFACE
  ${PHALANX_TORCH}/include ${PHALANX_TORCH}/include/torch/csrc/api/include
  ${CMAKE_SOURCE_DIR}/cmake/gloo_declarations)
target_compile_definitions(torch_wheel INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(torch_wheel INTERFACE "-Wl,--no-as-needed" torch_cpu torch_c10
  "-Wl,--as-needed" pthread)
# Kernels run on LibTorch's own OpenMP runtime, so that a process has one pool of threads.
file(GLOB torch_gomp ${PHALANX_TORCH}/lib/libgomp*.so*)
if(torch_gomp)
  list(GET torch_gomp 0 torch_gomp)
  target_link_libraries(torch_wheel INTERFACE ${torch_gomp})
endif()
