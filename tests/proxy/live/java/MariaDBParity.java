// What MariaDB's JDBC driver does of its own: `java -cp mariadb-java-client.jar MariaDBParity.java URL`.
import java.io.ByteArrayInputStream;
import java.sql.*;

public class MariaDBParity {
    static void must(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
        System.out.println("ok " + what);
    }

    static int one(Connection session, String query) throws SQLException {
        try (Statement s = session.createStatement(); ResultSet rows = s.executeQuery(query)) {
            rows.next();
            return rows.getInt(1);
        }
    }

    static void prepared(Connection session) throws SQLException {
        try (PreparedStatement s = session.prepareStatement("SELECT ? + 1, ?")) {
            boolean right = true;
            for (int n = 0; n < 12; n++) {
                s.setInt(1, n);
                s.setString(2, "value " + n);
                try (ResultSet rows = s.executeQuery()) {
                    right &= rows.next() && rows.getInt(1) == n + 1 && rows.getString(2).equals("value " + n);
                }
            }
            must(right, "prepared");
        }
    }

    static void batch(Connection session) throws SQLException {
        try (PreparedStatement s = session.prepareStatement("INSERT INTO t VALUES (?, ?)")) {
            for (int n = 0; n < 500; n++) {
                s.setInt(1, n);
                s.setBytes(2, new byte[n]);
                s.addBatch();
            }
            must(s.executeBatch().length == 500 && one(session, "SELECT COUNT(*) FROM t") == 500, "batch");
        }
    }

    // With a fetch size the driver streams; with a server-side statement the rows are binary.
    static void cursor(Connection session) throws SQLException {
        int seen = 0;
        try (PreparedStatement s = session.prepareStatement("SELECT * FROM t WHERE a >= ? ORDER BY a")) {
            s.setInt(1, 0);
            s.setFetchSize(64);
            try (ResultSet rows = s.executeQuery()) {
                while (rows.next()) seen += rows.getInt(1) == rows.getBytes(2).length ? 1 : 0;
            }
        }
        must(seen == 500, "cursor");
    }

    static void transaction(Connection session) throws SQLException {
        session.setAutoCommit(false);
        try (Statement s = session.createStatement()) {
            s.executeUpdate("DELETE FROM t");
            Savepoint point = session.setSavepoint("p");
            s.executeUpdate("INSERT INTO t VALUES (1, '')");
            session.rollback(point);
            session.rollback();
        }
        session.setAutoCommit(true);
        must(one(session, "SELECT COUNT(*) FROM t") == 500, "transaction");
    }

    static void blob(Connection session) throws SQLException {
        byte[] large = new byte[3_000_000];
        try (PreparedStatement s = session.prepareStatement("SELECT LENGTH(?)")) {
            s.setBlob(1, new ByteArrayInputStream(large));
            try (ResultSet rows = s.executeQuery()) {
                must(rows.next() && rows.getInt(1) == large.length, "blob");
            }
        }
    }

    static void results(Connection session) throws SQLException {
        try (Statement s = session.createStatement()) {
            int found = 0;
            boolean more = s.execute("SELECT 1; SELECT 2; SELECT 3");
            while (more) {
                found += 1;
                more = s.getMoreResults();
            }
            must(found == 3, "results");
        }
    }

    static void timeout(Connection session) throws SQLException {
        try (Statement s = session.createStatement()) {
            s.setQueryTimeout(1);
            boolean ended = false;
            try {
                s.executeQuery("SELECT COUNT(*) FROM seq_1_to_1000000 a JOIN seq_1_to_1000000 b WHERE a.seq * b.seq % 7 = 9");
            } catch (SQLException e) {
                ended = true;
            }
            must(ended, "timeout");
        }
        must(one(session, "SELECT 1") == 1, "survives");
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0] + "&useServerPrepStmts=true&allowMultiQueries=true";
        try (Connection session = DriverManager.getConnection(url)) {
            prepared(session);
            try (Statement s = session.createStatement()) {
                s.execute("CREATE TEMPORARY TABLE t (a INT, b BLOB)");
            }
            batch(session);
            cursor(session);
            transaction(session);
            blob(session);
            results(session);
            timeout(session);
        }
    }
}
