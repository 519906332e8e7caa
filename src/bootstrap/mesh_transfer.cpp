// SPDX-License-Identifier: MIT
#include "bootstrap/mesh_transfer.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace sluice::bootstrap {
namespace {

// One descriptor beside the bytes of a message.
union ControlBuffer {
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
  cmsghdr alignment;
};

Progress after_error(int error) noexcept {
  if (error == ENOBUFS || error == ENOMEM) {  // Here, of the system; it passes.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Progress::starved;
  }
  return error == EAGAIN ? Progress::blocked : Progress::gone;
}

void attach(msghdr& message, ControlBuffer& control, int file) {
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &file, sizeof(int));
}

// Takes the descriptor out of a received message. Others than one were never sent by a peer: the
// buffer has room for one only, and the kernel closes what does not fit.
void detach(const base::NoFork& meanwhile, msghdr& message, base::Descriptor& file) {
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    int number = -1;
    std::memcpy(&number, CMSG_DATA(head), sizeof(int));
    if (file.open()) {
      ::close(number);
    } else {
      file = base::Descriptor(meanwhile, number);
    }
  }
}

}  // namespace

Sending::Sending(const MessageHeader& header, std::string_view blob, const base::Descriptor* file)
    : header_(header), blob_(blob), file_(file) {
  if (header_.length > kBlobBytesMax) blob_ = {};
  header_.has_file = file_ != nullptr ? 1 : 0;
}

Progress Sending::advance(int socket) {
  while (!done()) {
    const std::size_t head = sent_ < sizeof(header_) ? sizeof(header_) - sent_ : 0;
    const std::size_t blob_at = sent_ > sizeof(header_) ? sent_ - sizeof(header_) : 0;
    // sendmsg does not write through these pointers; its type cannot say so.
    std::array<iovec, 2> pieces{
        iovec{reinterpret_cast<char*>(&header_) + (sizeof(header_) - head), head},
        iovec{const_cast<char*>(blob_.data()) + blob_at, blob_.size() - blob_at}};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    ControlBuffer control{};
    if (sent_ == 0 && file_ != nullptr) attach(message, control, file_->number());
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      sent_ += static_cast<std::size_t>(sent);
    } else if (errno == ETOOMANYREFS && file_ != nullptr) {
      file_ = nullptr;  // Too many descriptors on their way: the peer will say that it got none.
      header_.has_file = 0;
    } else if (errno != EINTR) {
      return after_error(errno);
    }
  }
  return Progress::done;
}

Progress Receiving::receive_header(int socket) {
  while (header_bytes_ < sizeof(header_)) {
    iovec piece{reinterpret_cast<char*>(&header_) + header_bytes_, sizeof(header_) - header_bytes_};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    ControlBuffer control{};
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    ssize_t got = 0;
    {
      const base::NoFork meanwhile;
      got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
      if (got > 0) detach(meanwhile, message, message_.file);
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return after_error(errno);
    if (got == 0) return Progress::gone;
    header_bytes_ += static_cast<std::size_t>(got);
  }
  return Progress::done;
}

Progress Receiving::advance(int socket, const MessageHeader& expected) {
  if (done_) return Progress::done;
  if (header_bytes_ < sizeof(header_)) {
    if (const Progress progress = receive_header(socket); progress != Progress::done) {
      return progress;
    }
    if (header_.magic != MessageHeader::kMagic || header_.kind != expected.kind ||
        header_.sequence != expected.sequence) {
      return Progress::garbled;
    }
    if (header_.length <= kBlobBytesMax) message_.blob.resize(header_.length);
  }
  std::string& blob = message_.blob;
  while (blob_bytes_ < blob.size()) {
    const ssize_t got = ::recv(socket, blob.data() + blob_bytes_, blob.size() - blob_bytes_, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return after_error(errno);
    if (got == 0) return Progress::gone;
    blob_bytes_ += static_cast<std::size_t>(got);
  }
  done_ = true;
  return Progress::done;
}

}  // namespace sluice::bootstrap
