#include <condition_variable>
#include <deque>
#include <mutex>

template <typename T>
class BlockingQueue {
public:
    void put(T item) {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            items_.push_back(std::move(item));
        }
        ready_.notify_one();
    }

    T take() {
        std::unique_lock<std::mutex> guard(mutex_);
        ready_.wait(guard, [this] { return !items_.empty(); });
        T item = std::move(items_.front());
        items_.pop_front();
        return item;
    }

private:
    std::mutex mutex_;
    std::condition_variable ready_;
    std::deque<T> items_;
};
