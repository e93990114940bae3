#include <cstddef>
#include <utility>

template <typename T>
class List {
    struct Node {
        T value;
        Node* next;
    };
    Node* head_ = nullptr;
    std::size_t size_ = 0;

public:
    ~List() {
        while (head_) {
            Node* next = head_->next;
            delete head_;
            head_ = next;
        }
    }

    void push(T value) {
        head_ = new Node{std::move(value), head_};
        size_ += 1;
    }

    bool contains(const T& value) const {
        for (Node* node = head_; node; node = node->next) {
            if (node->value == value) {
                return true;
            }
        }
        return false;
    }

    std::size_t size() const { return size_; }
};
