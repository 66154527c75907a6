import Comity
import Foundation

extension Checks {
    /// Buffers whose type is known at run time only, and data.
    func bytes() throws {
        let (rank, size) = (group.rank, group.size)
        let total = Float((0..<size).reduce(0, +))
        var values = [Float](repeating: Float(rank), count: 9)
        try values.withUnsafeMutableBytes { try group.allReduce($0, as: .float32) }
        try equal(values, [Float](repeating: total, count: 9), "allReduce of bytes")
        // Elements need no alignment.
        var shifted = [UInt8](repeating: 0, count: 13)
        shifted.withUnsafeMutableBytes { $0.storeBytes(of: Float(rank), toByteOffset: 1, as: Float.self) }
        try shifted.withUnsafeMutableBytes { try group.allReduce(UnsafeMutableRawBufferPointer(rebasing: $0[1..<5]), as: .float32) }
        try equal(shifted.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: 1, as: Float.self) }, total, "allReduce unaligned")
        try values.withUnsafeMutableBytes { bytes in
            bytes[0] = UInt8(rank)
            try group.broadcast(bytes, from: size - 1)
        }
        try equal(values.withUnsafeBytes { $0[0] }, UInt8(size - 1), "broadcast of bytes")

        var data = Data([UInt8(rank), 1, 2, 3])
        try group.allReduce(&data, as: .uint8, .max)
        try equal(data, Data([UInt8(size - 1), 1, 2, 3]), "allReduce of data")
        data = Data([UInt8(rank), 9])
        try group.broadcast(&data, from: 0)
        try equal(data, Data([0, 9]), "broadcast of data")
        if size > 1, rank == 0 {
            try group.send(Data([4, 5, 6]), to: 1)
            try values.withUnsafeBytes { try group.send($0, to: 1) }
        } else if rank == 1 {
            var received = Data(count: 3)
            try group.receive(into: &received, from: 0)
            try equal(received, Data([4, 5, 6]), "receive of data")
            try values.withUnsafeMutableBytes { try group.receive(into: $0, from: 0) }
        }
    }
}
