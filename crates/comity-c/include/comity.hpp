// Comity for C++11: groups and requests that free themselves, and errors as exceptions. Header only, over comity.h.
//
//     comity::Group group = comity::Group::init();
//     std::vector<float> x(1000, 1.0f);
//     group.all_reduce(x.data(), x.size(), COMITY_SUM);
//
// Functions that are not noexcept throw comity::Error, which has the rank at fault. Threads: as in comity.h.
#ifndef COMITY_HPP
#define COMITY_HPP

#include "comity.h"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace comity {

// Failure of a function.
class Error : public std::runtime_error {
public:
    comity_status status() const noexcept { return status_; }
    // First rank at fault; -1: none, or not known.
    int rank() const noexcept { return rank_; }
    // All ranks at fault.
    const std::vector<int> &ranks() const noexcept { return ranks_; }
    // Host of that rank; "": not known.
    const std::string &host() const noexcept { return host_; }
    // True if the group cannot be used any more, or was never made.
    bool fatal() const noexcept { return fatal_; }

    // Last error of this thread.
    static Error last(comity_status status) {
        comity_error *error = nullptr;
        comity_error_info info = comity_error_info();
        info.size = sizeof info;
        if (comity_error_take(&error) != COMITY_OK || !error || comity_error_get(error, &info) != COMITY_OK) {
            return Error(status, comity_last_error());
        }
        Error e(status, info.text);
        e.rank_ = info.rank;
        e.fatal_ = info.fatal != 0;
        e.ranks_.assign(info.ranks, info.ranks + info.rank_count);
        if (info.host) e.host_ = info.host;
        comity_error_free(error);
        return e;
    }

private:
    Error(comity_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    comity_status status_;
    int rank_ = -1;
    bool fatal_ = false;
    std::vector<int> ranks_;
    std::string host_;
};

// Throw unless a call succeeded.
inline void check(comity_status status) {
    if (status != COMITY_OK) throw Error::last(status);
}

// comity_dtype of a type of C++.
template <typename T> struct dtype_of;
template <> struct dtype_of<bool> { static constexpr comity_dtype value = COMITY_BOOL; };
template <> struct dtype_of<std::uint8_t> { static constexpr comity_dtype value = COMITY_U8; };
template <> struct dtype_of<std::uint16_t> { static constexpr comity_dtype value = COMITY_U16; };
template <> struct dtype_of<std::uint32_t> { static constexpr comity_dtype value = COMITY_U32; };
template <> struct dtype_of<std::uint64_t> { static constexpr comity_dtype value = COMITY_U64; };
template <> struct dtype_of<std::int8_t> { static constexpr comity_dtype value = COMITY_I8; };
template <> struct dtype_of<std::int16_t> { static constexpr comity_dtype value = COMITY_I16; };
template <> struct dtype_of<std::int32_t> { static constexpr comity_dtype value = COMITY_I32; };
template <> struct dtype_of<std::int64_t> { static constexpr comity_dtype value = COMITY_I64; };
template <> struct dtype_of<float> { static constexpr comity_dtype value = COMITY_F32; };
template <> struct dtype_of<double> { static constexpr comity_dtype value = COMITY_F64; };
template <> struct dtype_of<std::complex<float>> { static constexpr comity_dtype value = COMITY_C64; };

// Call in the background. Leave its buffers alone until it has ended, also if you destroy this before.
class Request {
public:
    explicit Request(comity_request *handle) noexcept : handle_(handle) {}
    Request(Request &&other) noexcept : handle_(other.release()) {}
    Request &operator=(Request &&other) noexcept {
        if (this != &other) {
            comity_request_free(handle_);
            handle_ = other.release();
        }
        return *this;
    }
    Request(const Request &) = delete;
    Request &operator=(const Request &) = delete;
    ~Request() { comity_request_free(handle_); }

    // Return true if the call has ended; throw its error if it failed.
    bool test() const { return ended(comity_request_test(handle_)); }
    // Wait until the call has ended, at most `timeout` seconds (negative: until the end). Return true if it has; throw its error if it failed.
    bool wait(double timeout = -1) const { return ended(comity_request_wait(handle_, timeout)); }

    comity_request *get() const noexcept { return handle_; }
    comity_request *release() noexcept {
        comity_request *handle = handle_;
        handle_ = nullptr;
        return handle;
    }

private:
    static bool ended(comity_status status) {
        if (status == COMITY_PENDING) return false;
        check(status);
        return true;
    }
    comity_request *handle_;
};

// Ranks that call collectives together. The destructor closes the group and hides its error: call close() to get it.
class Group {
public:
    explicit Group(comity_group *handle = nullptr) noexcept : handle_(handle) {}
    Group(Group &&other) noexcept : handle_(other.release()) {}
    Group &operator=(Group &&other) noexcept {
        if (this != &other) {
            comity_group_free(handle_);
            handle_ = other.release();
        }
        return *this;
    }
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;
    ~Group() { comity_group_free(handle_); }

    // Group of this process's job, as comity_init() finds it; `strict`: an error without a launcher.
    static Group init(bool strict = false) {
        comity_group *group = nullptr;
        check(strict ? comity_init_strict(&group) : comity_init(&group));
        return Group(group);
    }
    // Groups for threads of this process.
    static std::vector<Group> local(int size) {
        std::vector<comity_group *> handles(size > 0 ? static_cast<std::size_t>(size) : 1);
        check(comity_init_local(size, handles.data()));
        std::vector<Group> groups;
        for (comity_group *handle : handles) groups.emplace_back(handle);
        return groups;
    }

    int rank() const noexcept { return comity_group_rank(handle_); }
    int size() const noexcept { return comity_group_size(handle_); }
    // False if there is no group: split() gives none to ranks of color -1.
    explicit operator bool() const noexcept { return handle_ != nullptr; }

    template <typename T> void all_reduce(T *x, std::size_t count, comity_reduce_op op) {
        check(comity_all_reduce(handle_, x, x, number(count), dtype_of<T>::value, op));
    }
    template <typename T> void all_reduce(const T *src, T *dst, std::size_t count, comity_reduce_op op) {
        check(comity_all_reduce(handle_, src, dst, number(count), dtype_of<T>::value, op));
    }
    template <typename T> void reduce(const T *src, T *dst, std::size_t count, comity_reduce_op op, int root) {
        check(comity_reduce(handle_, src, dst, number(count), dtype_of<T>::value, op, root));
    }
    template <typename T> void broadcast(T *x, std::size_t count, int root) {
        check(comity_broadcast(handle_, x, number(count), dtype_of<T>::value, root));
    }
    // `count` is that of a rank's part, here and below.
    template <typename T> void all_gather(const T *src, T *dst, std::size_t count) {
        check(comity_all_gather(handle_, src, dst, number(count), dtype_of<T>::value));
    }
    template <typename T> void reduce_scatter(const T *src, T *dst, std::size_t count, comity_reduce_op op) {
        check(comity_reduce_scatter(handle_, src, dst, number(count), dtype_of<T>::value, op));
    }
    template <typename T> void gather(const T *src, T *dst, std::size_t count, int root) {
        check(comity_gather(handle_, src, dst, number(count), dtype_of<T>::value, root));
    }
    template <typename T> void scatter(const T *src, T *dst, std::size_t count, int root) {
        check(comity_scatter(handle_, src, dst, number(count), dtype_of<T>::value, root));
    }
    template <typename T> void all_to_all(const T *src, T *dst, std::size_t count) {
        check(comity_all_to_all(handle_, src, dst, number(count), dtype_of<T>::value));
    }
    template <typename T> void send(const T *src, std::size_t count, int to, std::uint32_t tag = 0) {
        check(comity_send(handle_, src, number(count), dtype_of<T>::value, to, tag));
    }
    template <typename T> void recv(T *dst, std::size_t count, int from, std::uint32_t tag = 0) {
        check(comity_recv(handle_, dst, number(count), dtype_of<T>::value, from, tag));
    }
    void barrier() { check(comity_barrier(handle_)); }

    // Any call: unequal parts, CUDA memory, a time limit of its own.
    void run(const comity_call &call) { check(comity_run(handle_, &call)); }
    Request start(const comity_call &call) {
        comity_request *request = nullptr;
        check(comity_start(handle_, &call, &request));
        return Request(request);
    }
    template <typename T> Request start_all_reduce(T *x, std::size_t count, comity_reduce_op op) {
        comity_call call = comity_call();
        call.size = sizeof call;
        call.op = COMITY_OP_ALL_REDUCE;
        call.dtype = dtype_of<T>::value;
        call.reduce = op;
        call.src = call.dst = x;
        call.count = number(count);
        return start(call);
    }

    // Color -1: this rank is in none of the groups.
    Group split(int color, int key = 0) {
        comity_group *made = nullptr;
        check(comity_group_split(handle_, color, key, &made));
        return Group(made);
    }
    Group subgroup(const std::vector<std::int32_t> &members, std::uint64_t label = 0) {
        comity_group *made = nullptr;
        check(comity_group_subgroup(handle_, members.data(), static_cast<std::int32_t>(members.size()), label, &made));
        return Group(made);
    }
    void set_timeout(double seconds) { check(comity_group_set_timeout(handle_, seconds)); }
    void abort(const std::string &why) { check(comity_group_abort(handle_, why.c_str())); }
    // Leave the group in good order. The handle stays until this is destroyed.
    void close() { check(comity_group_close(handle_)); }

    comity_group *get() const noexcept { return handle_; }
    comity_group *release() noexcept {
        comity_group *handle = handle_;
        handle_ = nullptr;
        return handle;
    }

private:
    static std::int64_t number(std::size_t count) noexcept { return static_cast<std::int64_t>(count); }
    comity_group *handle_;
};

}  // namespace comity

#endif
