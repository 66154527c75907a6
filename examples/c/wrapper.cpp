// The C++ wrapper: groups and requests that free themselves, and errors as exceptions.
#include <comity.hpp>
#include <iostream>
#include <vector>

int main() try {
    comity::Group group = comity::Group::init();
    std::vector<double> x(1000, group.rank() + 1.0), all(1000 * group.size());

    group.all_reduce(x.data(), x.size(), COMITY_MAX);
    group.all_gather(x.data(), all.data(), x.size());
    comity::Request pending = group.start_all_reduce(x.data(), x.size(), COMITY_SUM);
    pending.wait();
    if (x[999] != group.size() * static_cast<double>(group.size()) || all.back() != group.size()) return 1;

    // A mistake is an exception, and harms nothing.
    try {
        group.broadcast(x.data(), x.size(), group.size());
        return 1;
    } catch (const comity::Error &e) {
        if (e.status() != COMITY_ERR_MISUSE) throw;
    }
    comity::Group half = group.split(group.rank() % 2);
    half.barrier();
    half.close();
    if (group.rank() == 0) std::cout << "all right on " << group.size() << " ranks\n";
    group.close();
    return 0;
} catch (const comity::Error &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
