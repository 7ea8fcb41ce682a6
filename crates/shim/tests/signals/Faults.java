import java.io.RandomAccessFile;

/** Reads a served file while null checks and stack overflows fault in several threads. */
public class Faults {
    static final String[] NULLS = new String[10];

    static int deeper(int depth) {
        return deeper(depth + 1) + 1;
    }

    static int nulls(int rounds) {
        int caught = 0;
        for (int i = 0; i < rounds; i++) {
            try {
                caught += NULLS[i % NULLS.length].length();
            } catch (NullPointerException expected) {
                caught++;
            }
        }
        return caught;
    }

    public static void main(String[] arguments) throws Exception {
        RandomAccessFile file = new RandomAccessFile(arguments[0], "rw");
        Thread[] threads = new Thread[3];
        int[] caught = new int[threads.length];
        for (int i = 0; i < threads.length; i++) {
            int mine = i;
            threads[i] = new Thread(() -> caught[mine] = nulls(20000));
            threads[i].start();
        }
        byte[] bytes = new byte[4096];
        int found = 0;
        int overflows = 0;
        long sum = 0;
        for (int i = 0; i < 5000; i++) {
            file.seek(i % 200 * 4096L);
            file.readFully(bytes);
            sum += bytes[i % 4096];
            file.seek(i % 100 * 8192L);
            file.write(bytes, 0, 512);
            found += nulls(1);
            if (i % 2000 == 0) {
                try {
                    deeper(0);
                } catch (StackOverflowError expected) {
                    overflows++;
                }
            }
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(found + " null, " + overflows + " overflows, served " + sum + ", others "
            + (caught[0] + caught[1] + caught[2]));
    }
}
