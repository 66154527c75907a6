import CComity
import Dispatch

/// A call under way in the background, and what comes of it.
///
/// ```swift
/// let request = try group.startAllReduce(gradients, .average)
/// // ... compute what does not need them ...
/// let averaged = try await request.value
/// ```
///
/// A request owns its memory. One that nobody waits for goes on to its end, since other ranks count on it.
public final class Request<Value: Sendable>: Sendable {
    private let handle: Group.Handle
    /// Kept, so that the group is not closed under the call.
    private let group: Group
    private let result: @Sendable () -> Value

    @usableFromInline
    init(_ group: Group, _ handle: Group.Handle, result: @escaping @Sendable () -> Value) {
        (self.group, self.handle, self.result) = (group, handle, result)
    }

    deinit {
        comity_request_free(handle.pointer)
    }

    /// Whether the call has ended, well or not.
    public var isFinished: Bool {
        comity_request_test(handle.pointer) != COMITY_PENDING
    }

    /// Result of the call, once it has ended. The task is suspended until then, and no thread waits.
    ///
    /// Cancellation of the task ends the group on all ranks, for nothing less can be cancelled. The error is then
    /// ``ComityError/cancelled(_:)`` here and ``ComityError/aborted(_:)`` on the other ranks.
    public var value: Value {
        get async throws(ComityError) {
            if !isFinished {
                await withTaskCancellationHandler {
                    await finish()
                } onCancel: { [group] in
                    // Elsewhere: the runtime holds a lock of the task here, which the end of the call needs to resume it.
                    DispatchQueue.global().async {
                        // The group may have ended, and then the call says how.
                        try? group.abort("the task on rank \(group.rank) that waited for a call was cancelled")
                    }
                }
            }
            do {
                return try outcome()
            } catch .aborted(let details) where Task.isCancelled && details.rank == group.rank {
                throw .cancelled(details)
            }
        }
    }

    /// Wait for the result of the call and block the thread meanwhile. In tasks use ``value``.
    @available(*, noasync, message: "await value, which suspends the task")
    public func wait() throws(ComityError) -> Value {
        // Its status is asked for below.
        _ = comity_request_wait(handle.pointer, -1)
        return try outcome()
    }

    /// Wait for the result of the call at most for so long.
    ///
    /// - Returns: `nil` where the call is still under way, which harms nothing.
    @available(*, noasync, message: "await value, which suspends the task")
    public func wait(atMost limit: Duration) throws(ComityError) -> Value? {
        if comity_request_wait(handle.pointer, max(0, limit.inSeconds)) == COMITY_PENDING {
            return nil
        }
        return try outcome()
    }

    /// The result of a call that has ended.
    private func outcome() throws(ComityError) -> Value {
        try check(comity_request_test(handle.pointer))
        return result()
    }

    /// Suspends the task until the call has ended.
    private func finish() async {
        await withCheckedContinuation { continuation in
            let waiting = Unmanaged.passRetained(Waiting(continuation))
            let status = comity_request_on_done(
                handle.pointer, { $0.map { Unmanaged<Waiting>.fromOpaque($0).takeRetainedValue().resume() } }, waiting.toOpaque())
            if status != COMITY_OK {
                // No such request: the call is not under way.
                waiting.takeRetainedValue().resume()
            }
        }
    }
}

/// A task that waits for a request.
private final class Waiting: Sendable {
    private let continuation: CheckedContinuation<Void, Never>

    init(_ continuation: CheckedContinuation<Void, Never>) {
        self.continuation = continuation
    }

    func resume() {
        continuation.resume()
    }
}

/// Memory of a call in the background, which lives until the call has ended, also when its request is gone.
@usableFromInline
final class CallMemory: @unchecked Sendable {
    @usableFromInline let source: UnsafeMutableRawPointer
    @usableFromInline let destination: UnsafeMutableRawPointer
    @usableFromInline let count: Int

    /// Room for what a call reads and writes; the same bytes if it does so in place.
    @usableFromInline
    init(_ plan: Plan, inPlace: Bool) {
        let size = plan.type.size
        source = .allocate(byteCount: max(size * plan.sent, 1), alignment: 64)
        destination = inPlace ? source : .allocate(byteCount: max(size * plan.received, 1), alignment: 64)
        count = plan.received
    }

    deinit {
        if destination != source {
            destination.deallocate()
        }
        source.deallocate()
    }

    /// Copy of what was written.
    @usableFromInline
    func values<T: CollectiveElement>(_ type: T.Type) -> [T] {
        [T](UnsafeRawBufferPointer(start: destination, count: count * MemoryLayout<T>.stride).bindMemory(to: T.self))
    }
}

extension Group {
    /// Begins a call in the background.
    @usableFromInline
    func begin(
        _ plan: Plan, _ memory: CallMemory?, _ source: UnsafeRawPointer?, _ destination: UnsafeMutableRawPointer?
    ) throws(ComityError) -> Handle {
        var request: OpaquePointer?
        try check(
            withExtendedLifetime(self) {
                plan.withCall(source, destination) { comity_start(handle.pointer, $0, &request) }
            })
        if let memory {
            // Should this function refuse, the memory stays for ever: the call may use it.
            let kept = Unmanaged.passRetained(memory)
            _ = comity_request_on_done(request, { $0.map { Unmanaged<CallMemory>.fromOpaque($0).release() } }, kept.toOpaque())
        }
        return Handle(pointer: request)
    }

    /// Begins a call over copies of the values.
    @inlinable
    func start<T: CollectiveElement>(
        _ plan: Plan, _ values: [T], inPlace: Bool = false
    ) throws(ComityError) -> Request<[T]> {
        try start(plan, values, inPlace: inPlace) { $0.values(T.self) }
    }

    /// Begins a call over copies of the values, whose result is made of what was written.
    @inlinable
    func start<T: CollectiveElement, Value>(
        _ plan: Plan, _ values: [T], inPlace: Bool = false, result: @escaping @Sendable (CallMemory) -> Value
    ) throws(ComityError) -> Request<Value> {
        try plan.checkMemory()
        let memory = CallMemory(plan, inPlace: inPlace)
        values.withUnsafeBytes { bytes in
            if let first = bytes.baseAddress, plan.sent > 0 {
                memory.source.copyMemory(from: first, byteCount: bytes.count)
            }
        }
        let request = try begin(plan, memory, memory.source, memory.destination)
        return Request(self, request) { result(memory) }
    }

    /// Begins a call over memory of the caller's.
    @inlinable
    func start(
        _ plan: Plan, _ source: UnsafeRawPointer?, _ destination: UnsafeMutableRawPointer?
    ) throws(ComityError) -> Request<Void> {
        Request(self, try begin(plan, nil, source, destination)) {}
    }
}
